-- One tick: finds the messages that became visible since the last tick, gives them their seqs, remembers what it saw.
-- $1 key of the advisory lock, $2 most rows of a part, $3 channel to notify on (null: none), $4 who notifies
-- Writes: tick, outgoing; nothing at all if there is nothing new. Durable, whatever the role's setting.
-- Locks: the link it builds on (KEY SHARE), so that vacuum cannot take it away meanwhile. The advisory lock only saves
-- work: without it the loser would find out at the key of the chain.
-- Index: incoming (stamp); tick and outgoing by their primary keys, newest first.
WITH gate AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock($1) AS mine, pg_current_snapshot() AS now
), previous AS MATERIALIZED (
    SELECT t.id, t.seen, t.cluster, t.incoming, pg_snapshot_xmax(t.seen) AS xmax
    FROM {tick} t
    WHERE (SELECT mine FROM gate)
    ORDER BY t.id DESC LIMIT 1
),
-- New are the rows of transactions that began to write after the last tick …
fresh AS MATERIALIZED (
    SELECT i.id, i.partition_id, i.stamp
    FROM {incoming} i
    WHERE i.stamp >= (SELECT xmax FROM previous)
    ORDER BY i.stamp LIMIT $2
),
-- … and of those that were under way then and have ended since.
late AS MATERIALIZED (
    SELECT i.id, i.partition_id
    FROM {incoming} i
    WHERE i.stamp = ANY (ARRAY(SELECT pg_snapshot_xip(p.seen) FROM previous p))
),
-- Too much for one tick: then it ends before the last transaction it met, or behind it if there is no other. Which
-- transactions it has seen can be said as a snapshot too, so the next tick goes on from there.
bounds AS MATERIALIZED (
    SELECT f.is_full,
           CASE WHEN f.is_full THEN (SELECT stamp FROM fresh ORDER BY stamp LIMIT 1) END AS first,
           CASE WHEN f.is_full THEN (SELECT stamp FROM fresh ORDER BY stamp DESC LIMIT 1) END AS last
    FROM (SELECT count(*) >= $2 AS is_full FROM fresh) f
), part AS MATERIALIZED (
    SELECT b.is_full, b.first = b.last AS is_one, b.last,
           CASE WHEN b.first = b.last THEN (b.last::text::bigint + 1)::text::xid8 ELSE b.last END AS edge
    FROM bounds b
), taken AS MATERIALIZED (
    SELECT id, partition_id FROM late
    UNION ALL
    SELECT f.id, f.partition_id FROM fresh f, part WHERE NOT part.is_full OR f.stamp < part.last
    UNION ALL
    SELECT i.id, i.partition_id FROM {incoming} i WHERE i.stamp = (SELECT last FROM part WHERE is_full AND is_one)
),
-- Restored into another place, the stamps mean nothing, and what is new cannot be told by them: then nothing is sequenced,
-- and the caller recovers.
alarm AS MATERIALIZED (
    SELECT coalesce((SELECT (p.cluster, p.incoming) IS DISTINCT FROM
                            ((SELECT system_identifier FROM pg_control_system()), {incoming_literal}::regclass::oid)
                         OR p.xmax > pg_snapshot_xmax(gate.now)
                     FROM previous p), false)
        OR EXISTS (SELECT FROM fresh f WHERE f.stamp >= pg_snapshot_xmax(gate.now)) AS is_raised
    FROM gate
), locked AS MATERIALIZED (
    SELECT t.id
    FROM {tick} t
    WHERE t.id = (SELECT p.id FROM previous p) AND EXISTS (SELECT FROM taken) AND NOT (SELECT is_raised FROM alarm)
    FOR KEY SHARE
), durable AS MATERIALIZED (
    SELECT CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
                THEN set_config('synchronous_commit', 'on', true) ELSE '' END AS setting
    FROM locked
), link AS (
    INSERT INTO {tick} (id, seen, cluster, incoming)
    SELECT p.id + 1,
           CASE WHEN NOT part.is_full THEN gate.now ELSE (
               SELECT format('%s:%s:%s', coalesce((array_agg(x.xid::text ORDER BY x.xid))[1], part.edge::text), part.edge,
                             string_agg(x.xid::text, ',' ORDER BY x.xid))::pg_snapshot
               FROM pg_snapshot_xip(gate.now) AS x (xid) WHERE x.xid < part.edge
           ) END,
           p.cluster, p.incoming
    FROM previous p JOIN locked l ON l.id = p.id, gate, part, durable
    WHERE durable.setting IS NOT NULL
    ON CONFLICT DO NOTHING
    RETURNING id
), lists AS MATERIALIZED (
    SELECT t.partition_id, array_agg(t.id ORDER BY t.id) AS ids,
           coalesce((SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = t.partition_id
                     ORDER BY o.last_seq DESC LIMIT 1), 0) AS head
    FROM taken t GROUP BY t.partition_id
),
-- No link, no segments.
segments AS (
    INSERT INTO {outgoing} (partition_id, last_seq, ids)
    SELECT l.partition_id, l.head + least(s.first + 255, cardinality(l.ids)), l.ids[s.first : s.first + 255]
    FROM link CROSS JOIN lists l CROSS JOIN LATERAL generate_series(1, cardinality(l.ids), 256) AS s (first)
    RETURNING partition_id
), touched AS MATERIALIZED (
    SELECT coalesce(array_agg(DISTINCT partition_id), '{}') AS partitions FROM segments
)
SELECT gate.mine, gate.now::text AS now, alarm.is_raised, part.is_full,
       (SELECT count(*) FROM taken) AS taken,
       EXISTS (SELECT FROM link) AS appended,
       touched.partitions,
       CASE WHEN $3::text IS NOT NULL AND touched.partitions <> '{}' THEN pg_notify($3, CASE
           WHEN octet_length(array_to_string(touched.partitions, ',')) > 7900 THEN 'sequenced ' || $4 || ' *'
           ELSE 'sequenced ' || $4 || ' ' || array_to_string(touched.partitions, ',') END) END IS NULL AS notified
FROM gate, alarm, part, touched
