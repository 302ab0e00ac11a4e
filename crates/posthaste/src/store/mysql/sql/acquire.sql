-- Takes a partition's lease: appends to the link that was looked at, if it is still the newest.
-- ? attempts, ? owner, ? lease in ms, ? lease in ms, ? reader, ? epoch, ? partition, ? owner
-- Writes: cursor, one link; error 1062 if the link has a successor, nothing if it is gone or not free.
-- Whether it is free is asked again: a statement's clock stands still from its beginning, so a look may see a link that was
-- written after that, and take its lease for one that a clock which jumped back has left behind.
-- Locks: the link it builds on.
-- Index: cursor by its primary key.
INSERT INTO {cursor} (reader, partition_id, epoch, processed_seq, attempts, owner, lease_until, lease_ms, last_error)
SELECT c.reader, c.partition_id, c.epoch + 1, c.processed_seq, ?, ?, {now} + ? * 1000, ?, c.last_error
FROM {cursor} c
WHERE c.reader = ? AND c.epoch = ? AND c.partition_id = ?
  AND (c.lease_until IS NULL OR c.owner = ? OR c.lease_until <= {now} OR c.lease_until > {now} + c.lease_ms * 1000)
FOR UPDATE
