-- After a restore into another place: gives seqs to every message that is in no segment, by id, and starts the chain of
-- ticks anew from here. The statement before it, in the same transaction, has locked incoming against writers.
-- Writes: incoming (stamps that lie in this cluster's future), outgoing, tick.
WITH previous AS (
    SELECT t.id FROM {tick} t ORDER BY t.id DESC LIMIT 1 FOR KEY SHARE
), orphans AS (
    SELECT i.id, i.partition_id FROM {incoming} i
    WHERE i.id IN (SELECT id FROM {incoming} EXCEPT SELECT unnest(o.ids) FROM {outgoing} o)
), link AS (
    INSERT INTO {tick} (id, seen, cluster, incoming)
    SELECT p.id + 1, pg_current_snapshot(), c.system_identifier, {incoming_literal}::regclass::oid
    FROM previous p, pg_control_system() c
    ON CONFLICT DO NOTHING
    RETURNING id
), restamped AS (
    UPDATE {incoming} SET stamp = '3'
    WHERE stamp >= pg_snapshot_xmin(pg_current_snapshot()) AND EXISTS (SELECT FROM link)
), numbered AS (
    SELECT partition_id, id, row_number() OVER (PARTITION BY partition_id ORDER BY id) AS n FROM orphans
), heads AS MATERIALIZED (
    SELECT p.partition_id, coalesce((SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = p.partition_id
                                     ORDER BY o.last_seq DESC LIMIT 1), 0) AS seq
    FROM (SELECT DISTINCT partition_id FROM orphans) p
), segments AS (
    INSERT INTO {outgoing} (partition_id, last_seq, ids)
    SELECT s.partition_id, h.seq + s.last_n, s.ids
    FROM link CROSS JOIN (
        SELECT partition_id, max(n) AS last_n, array_agg(id ORDER BY n) AS ids
        FROM numbered GROUP BY partition_id, (n - 1) / 256
    ) s JOIN heads h ON h.partition_id = s.partition_id
    RETURNING cardinality(ids) AS size
)
SELECT coalesce(sum(size), 0)::bigint AS recovered FROM segments
