-- The same where handlers work in transactions: such a handler has the partition locked, and nobody takes over from one that
-- is slow but alive.
-- ? attempts, ? owner, ? lease in ms, ? lease in ms, ? reader, ? epoch, ? partition, ? owner
-- Writes: cursor, one link; error 1062 if the link has a successor, nothing if it is gone, locked or not free, or the
-- partition is locked.
-- Locks: the partition, the link it builds on.
-- Index: partition and cursor by their primary keys.
INSERT INTO {cursor} (reader, partition_id, epoch, processed_seq, attempts, owner, lease_until, lease_ms, last_error)
SELECT c.reader, c.partition_id, c.epoch + 1, c.processed_seq, ?, ?, {now} + ? * 1000, ?, c.last_error
FROM {partition} p STRAIGHT_JOIN {cursor} c FORCE INDEX (PRIMARY) ON c.reader = ? AND c.partition_id = p.id AND c.epoch = ?
WHERE p.id = ?
  AND (c.lease_until IS NULL OR c.owner = ? OR c.lease_until <= {now} OR c.lease_until > {now} + c.lease_ms * 1000)
FOR UPDATE SKIP LOCKED
