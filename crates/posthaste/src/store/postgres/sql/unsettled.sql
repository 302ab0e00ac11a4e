-- Which of these partitions have messages that are committed and not settled, and what is first of them: at one moment, for a
-- tick moves messages from one table's account to the other's.
-- $1 reader, $2 partitions
-- Reads: per partition the newest link, the newest segment and the one behind the cursor, by their primary keys; all messages
-- that no tick has taken, by incoming (stamp), as a tick finds them; incoming by id.
WITH previous AS MATERIALIZED (
    SELECT t.seen, pg_snapshot_xmax(t.seen) AS xmax FROM {tick} t ORDER BY t.id DESC LIMIT 1
), fresh AS MATERIALIZED (
    SELECT n.partition_id, count(*) AS unsequenced, min(n.id) AS first_id
    FROM (
        SELECT i.id, i.partition_id FROM {incoming} i WHERE i.stamp >= (SELECT xmax FROM previous)
        UNION ALL
        SELECT i.id, i.partition_id FROM {incoming} i
        WHERE i.stamp = ANY (ARRAY(SELECT pg_snapshot_xip(p.seen) FROM previous p))
    ) n
    WHERE n.partition_id = ANY ($2::integer[])
    GROUP BY n.partition_id
)
SELECT p.id AS partition_id, coalesce(head.last_seq - tip.processed_seq, 0) AS sequenced,
       coalesce(fresh.unsequenced, 0) AS unsequenced, first.id AS first_id,
       (extract(epoch FROM clock_timestamp() - first.created_at) * 1000000)::bigint AS age_us, tip.attempts, tip.last_error
FROM unnest($2::integer[]) AS p (id)
CROSS JOIN LATERAL (
    SELECT c.processed_seq, c.attempts, c.last_error
    FROM {cursor} c WHERE c.reader = $1 AND c.partition_id = p.id ORDER BY c.epoch DESC LIMIT 1) tip
LEFT JOIN LATERAL (
    SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = p.id ORDER BY o.last_seq DESC LIMIT 1) head ON true
LEFT JOIN LATERAL (
    SELECT o.ids[(tip.processed_seq + 1 - (o.last_seq - cardinality(o.ids)))::integer] AS id
    FROM {outgoing} o WHERE o.partition_id = p.id AND o.last_seq > tip.processed_seq ORDER BY o.last_seq LIMIT 1) next ON true
LEFT JOIN fresh ON fresh.partition_id = p.id
LEFT JOIN LATERAL (
    SELECT i.id, i.created_at FROM {incoming} i WHERE i.id = coalesce(next.id, fresh.first_id) LIMIT 1) first ON true
WHERE head.last_seq > tip.processed_seq OR fresh.unsequenced > 0
ORDER BY p.id
