-- The newest link of a partition's cursor, and its newest segment.
-- ? owner, ? partition, ? partition, ? reader, ? partition
-- Reads: cursor and outgoing by their primary keys, newest first; partition and queue by id.
-- Differs from PostgreSQL, where the statement that appends says this too.
SELECT c.epoch, c.processed_seq, c.attempts, c.owner, c.last_error,
       -- Without an owner it is the back-off of the first message. One that ends further ahead than it is long: the clock jumped
       -- back since.
       (c.lease_until IS NULL OR c.owner = ? OR c.lease_until <= {now} OR c.lease_until > {now} + c.lease_ms * 1000) IS TRUE AS is_free,
       coalesce(c.lease_until - {now}, 0) AS micros_left,
       coalesce((SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = ? ORDER BY o.last_seq DESC LIMIT 1), 0) AS head,
       EXISTS (SELECT 1 FROM {partition} p JOIN {queue} q ON q.id = p.queue_id
               WHERE p.id = ? AND q.paused_at IS NOT NULL) AS is_paused
FROM {cursor} c
WHERE c.reader = ? AND c.partition_id = ?
ORDER BY c.epoch DESC LIMIT 1
