-- The messages of some partitions that are committed and that no tick has taken, the first ones by id behind one.
-- $1 partitions, $2 an id, $3 how many at most
-- Reads: the newest tick; all messages that it did not see, by incoming (stamp), as the next tick finds them; incoming by id.
WITH previous AS MATERIALIZED (
    SELECT t.seen, pg_snapshot_xmax(t.seen) AS xmax FROM {tick} t ORDER BY t.id DESC LIMIT 1
), fresh AS MATERIALIZED (
    SELECT n.id
    FROM (
        SELECT i.id, i.partition_id FROM {incoming} i WHERE i.stamp >= (SELECT xmax FROM previous)
        UNION ALL
        SELECT i.id, i.partition_id FROM {incoming} i
        WHERE i.stamp = ANY (ARRAY(SELECT pg_snapshot_xip(p.seen) FROM previous p))
    ) n
    WHERE n.partition_id = ANY ($1::integer[]) AND n.id > $2
    ORDER BY n.id LIMIT $3
)
SELECT i.id, i.partition_id, i.key, i.headers, i.payload_type, i.payload,
       (extract(epoch FROM i.created_at) * 1000000)::bigint AS created_us
FROM fresh CROSS JOIN LATERAL (SELECT * FROM {incoming} i WHERE i.id = fresh.id LIMIT 1) i
ORDER BY i.id
