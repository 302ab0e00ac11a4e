-- The newest link of a partition's cursor: whose is it?
-- $1 reader, $2 partition, $3 who asks
-- Reads: cursor by its primary key, newest first.
SELECT c.epoch, c.owner = $3 AS is_mine FROM {cursor} c WHERE c.reader = $1 AND c.partition_id = $2
ORDER BY c.epoch DESC LIMIT 1
