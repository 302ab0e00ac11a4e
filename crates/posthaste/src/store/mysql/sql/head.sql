-- The last seq of a partition.
-- Reads: outgoing by its primary key, newest first.
SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = ? ORDER BY o.last_seq DESC LIMIT 1
