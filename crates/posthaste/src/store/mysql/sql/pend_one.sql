-- Says of a new message that it has no seq yet, in the transaction that wrote it.
-- ? id, ? partition
-- Writes: pending. Locks: none but the new row.
INSERT INTO {pending} (id, partition_id) VALUES (?, ?)
