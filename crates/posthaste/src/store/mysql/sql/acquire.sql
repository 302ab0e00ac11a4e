-- Takes a partition's lease: appends to the link that was looked at, if it is still the newest.
-- ? attempts, ? owner, ? lease in ms, ? lease in ms, ? reader, ? epoch, ? partition
-- Writes: cursor, one link; error 1062 if the link has a successor, nothing if it is gone.
-- Locks: the link it builds on.
-- Index: cursor by its primary key.
INSERT INTO {cursor} (reader, partition_id, epoch, processed_seq, attempts, owner, lease_until, lease_ms, last_error)
SELECT c.reader, c.partition_id, c.epoch + 1, c.processed_seq, ?, ?, {now} + ? * 1000, ?, c.last_error
FROM {cursor} c
WHERE c.reader = ? AND c.epoch = ? AND c.partition_id = ?
FOR UPDATE
