-- How far every partition of every queue is; and, in rows without a queue, what has no seq yet.
-- ?1 reader, ?2 how many of the messages without a seq are looked at: the first ones, in the order of a tick
-- Reads: queue and partition, all of them; per partition the newest link, the newest segment, the segment behind the cursor
-- and the message there, by their primary keys; the newest tick; incoming by id, from behind what that tick saw. Counts nothing.
-- A lease that has run out is none; nor is one that ends further ahead than it is long, since the clock jumped back.
-- One statement, so that all of it is true of one moment: what is not sequenced yet is behind no cursor either.
-- Differs from the PostgreSQL version in that what is not sequenced yet is what is above the newest tick's last id.
SELECT {now} AS now_us, q.name AS queue, p.number, p.id AS partition_id, q.paused_at IS NOT NULL AS is_paused,
       coalesce(tip.processed_seq, 0) AS processed_seq, coalesce(tip.attempts, 0) AS attempts,
       CASE WHEN tip.lease_until > {now} AND tip.lease_until <= {now} + tip.lease_ms * 1000 THEN tip.owner END AS owner,
       tip.lease_until - {now} AS micros_left, tip.last_error,
       coalesce((SELECT o.last_seq FROM {outgoing} AS o WHERE o.partition_id = p.id ORDER BY o.last_seq DESC LIMIT 1), 0) AS head,
       (SELECT i.created_at FROM {incoming} AS i WHERE i.id = (
            SELECT o.ids ->> (tip.processed_seq + 1 - o.first_seq)
            FROM {outgoing} AS o WHERE o.partition_id = p.id AND o.last_seq > tip.processed_seq
            ORDER BY o.last_seq LIMIT 1)) AS created_us,
       NULL AS unsequenced_id
FROM {queue} AS q
CROSS JOIN {partition} AS p ON p.queue_id = q.id
LEFT JOIN {cursor} AS tip ON tip.reader = ?1 AND tip.partition_id = p.id AND tip.epoch = (
    SELECT c.epoch FROM {cursor} AS c WHERE c.reader = ?1 AND c.partition_id = p.id ORDER BY c.epoch DESC LIMIT 1)
UNION ALL
SELECT {now}, NULL, NULL, u.partition_id, 0, 0, 0, NULL, NULL, NULL, 0, min(u.created_at), min(u.id)
FROM (SELECT i.id, i.partition_id, i.created_at FROM {incoming} AS i
      WHERE i.id > (SELECT t.last_id FROM {tick} AS t ORDER BY t.id DESC LIMIT 1) ORDER BY i.id LIMIT ?2) AS u
GROUP BY u.partition_id
