-- Takes a partition's lease, if it is free and something is behind its cursor, and the newest link is the one that was looked at;
-- then reads the first batch. Two statements, each for itself, in one go.
-- ?1 reader, ?2 partition, ?3 owner, ?4 lease in ms, ?5 the last epoch that the owner called its handler for: a link of its own
-- that is another one was only a reply that got lost, and no try; ?6 the epoch that was looked at, ?7 most messages
-- Writes: cursor, one link. A power failure may take it back: then the lease is taken again.
-- Locks: the database against other writers, while the first runs: it reads the link it builds on under that lock.
-- Index: cursor and outgoing by their primary keys, newest first; incoming by id. A segment has at most 256 messages, so none
-- that ends further ahead has any of the batch.
-- A row for the link, and one for each message, in no order; one that should be there and is not has no id.
-- Differs from the PostgreSQL version in that look.sql has looked before, and in that there is no row of the partition to lock: a
-- handler's transaction keeps every other writer out.
INSERT INTO {cursor} (reader, partition_id, epoch, processed_seq, attempts, owner, lease_until, lease_ms, last_error)
SELECT ?1, ?2, tip.epoch + 1, tip.processed_seq,
       min(tip.attempts + CASE WHEN tip.owner = ?3 AND tip.epoch <> ?5 THEN 0 ELSE 1 END, 2147483647), ?3,
       {now} + ?4 * 1000, ?4, tip.last_error
FROM (SELECT * FROM {cursor} AS c WHERE c.reader = ?1 AND c.partition_id = ?2 ORDER BY c.epoch DESC LIMIT 1) AS tip
WHERE tip.epoch = ?6
  AND (tip.lease_until IS NULL OR tip.owner = ?3 OR tip.lease_until <= {now} OR tip.lease_until > {now} + tip.lease_ms * 1000)
  AND tip.processed_seq < (SELECT o.last_seq FROM {outgoing} AS o WHERE o.partition_id = ?2 ORDER BY o.last_seq DESC LIMIT 1)
RETURNING epoch, processed_seq, attempts, last_error;
SELECT o.first_seq + m.key AS seq, i.id, i.key, i.headers, i.payload_type, i.payload, i.created_at AS created_us
FROM (SELECT c.processed_seq FROM {cursor} AS c
      WHERE c.reader = ?1 AND c.partition_id = ?2 AND c.epoch = ?6 + 1 AND c.owner = ?3) AS link
CROSS JOIN {outgoing} AS o ON o.partition_id = ?2 AND o.last_seq > link.processed_seq AND o.last_seq < link.processed_seq + ?7 + 256
CROSS JOIN json_each(o.ids) AS m
LEFT JOIN {incoming} AS i ON i.id = m.value
WHERE o.first_seq + m.key BETWEEN link.processed_seq + 1 AND link.processed_seq + ?7
