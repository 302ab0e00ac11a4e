-- Locks old links of cursors, or fails at once if somebody builds on one.
-- ? an array of [partition, first epoch, end of the epochs]; ? reader
-- Locks: these links. Index: cursor by its primary key, a range for each partition.
SELECT c.partition_id, c.epoch
FROM JSON_TABLE(?, '$[*]' COLUMNS (id INT PATH '$[0]', first_epoch BIGINT PATH '$[1]', end_epoch BIGINT PATH '$[2]')) x
STRAIGHT_JOIN {cursor} c ON c.reader = ? AND c.partition_id = x.id AND c.epoch >= x.first_epoch AND c.epoch < x.end_epoch
FOR UPDATE NOWAIT
