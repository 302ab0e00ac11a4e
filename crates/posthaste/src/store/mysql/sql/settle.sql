-- Moves a partition's cursor, and renews the lease or lets it go.
-- ? processed_seq, ? attempts, ? owner, ? and ? lease in ms, or back-off if it lets go (null: none), ? last error as bytes, ? reader,
-- ? partition, ? epoch, ? owner, ? processed_seq, ? partition
-- Writes: cursor, one link; error 1062, or nothing, if the lease was taken over.
-- Locks: the link it builds on.
-- Index: cursor and outgoing by their primary keys.
-- Differs from the PostgreSQL version in that the next batch was read before: whether it goes on is known here.
INSERT INTO {cursor} (reader, partition_id, epoch, processed_seq, attempts, owner, lease_until, lease_ms, last_error)
SELECT c.reader, c.partition_id, c.epoch + 1, ?, ?, ?, {now} + ? * 1000, ?, CONVERT(? USING utf8mb4)
FROM {cursor} c
WHERE c.reader = ? AND c.partition_id = ? AND c.epoch = ? AND c.owner = ?
  AND ? BETWEEN c.processed_seq AND coalesce((SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = ?
                                              ORDER BY o.last_seq DESC LIMIT 1), 0)
FOR UPDATE
