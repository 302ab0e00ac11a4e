-- How far every partition of every queue is; and, in rows without a queue, what has no seq yet.
-- $1 reader, $2 how many of the messages without a seq are looked at: the first ones, in the order of a tick
-- Reads: queue and partition, all of them; per partition the newest link, the newest segment, the segment behind the cursor
-- and the message there, by their primary keys; the newest tick; incoming (stamp) from where that tick ended. Counts nothing.
-- A lease that has run out is none; nor is one that ends further ahead than it is long, since the clock jumped back.
-- One statement, so that all of it is true of one moment: what is not sequenced yet is behind no cursor either.
WITH newest AS MATERIALIZED (
    SELECT t.seen, pg_snapshot_xmax(t.seen) AS xmax FROM {tick} t ORDER BY t.id DESC LIMIT 1
), fresh AS MATERIALIZED (
    SELECT i.id, i.partition_id, i.created_at
    FROM {incoming} i WHERE i.stamp >= (SELECT xmax FROM newest) ORDER BY i.stamp LIMIT $2
), late AS MATERIALIZED (
    SELECT i.id, i.partition_id, i.created_at
    FROM {incoming} i WHERE i.stamp = ANY (ARRAY(SELECT pg_snapshot_xip(n.seen) FROM newest n)) LIMIT $2
)
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us,
       q.name AS queue, p.number::bigint AS number, p.id::bigint AS partition_id, (q.paused_at IS NOT NULL)::integer::bigint AS is_paused,
       coalesce(tip.processed_seq, 0) AS processed_seq, coalesce(tip.attempts, 0)::bigint AS attempts,
       CASE WHEN tip.is_held THEN uuid_send(tip.owner) END AS owner,
       (extract(epoch FROM tip.lease_until - clock_timestamp()) * 1000000)::bigint AS micros_left, tip.last_error,
       coalesce((SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = p.id ORDER BY o.last_seq DESC LIMIT 1), 0) AS head,
       (SELECT (extract(epoch FROM i.created_at) * 1000000)::bigint FROM {incoming} i WHERE i.id = (
            SELECT o.ids[(tip.processed_seq + 1 - (o.last_seq - cardinality(o.ids)))::integer]
            FROM {outgoing} o WHERE o.partition_id = p.id AND o.last_seq > tip.processed_seq
            ORDER BY o.last_seq LIMIT 1)) AS created_us,
       NULL::bigint AS unsequenced_id
FROM {queue} q
JOIN {partition} p ON p.queue_id = q.id
LEFT JOIN LATERAL (
    SELECT c.processed_seq, c.attempts, c.owner, c.lease_until, c.last_error,
           c.owner IS NOT NULL AND c.lease_until > clock_timestamp()
               AND c.lease_until <= clock_timestamp() + c.lease_ms * interval '1 ms' AS is_held
    FROM {cursor} c WHERE c.reader = $1 AND c.partition_id = p.id ORDER BY c.epoch DESC LIMIT 1) tip ON true
UNION ALL
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
       NULL, NULL, u.partition_id::bigint, 0, 0, 0, NULL, NULL, NULL, 0,
       (extract(epoch FROM min(u.created_at)) * 1000000)::bigint, min(u.id)
FROM (SELECT * FROM fresh UNION ALL SELECT * FROM late) u
GROUP BY u.partition_id
