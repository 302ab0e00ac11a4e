-- Removes links that are locked.
-- ? an array of [partition, epoch]; ? reader
-- Writes: cursor. Index: its primary key, a probe for each link.
DELETE c
FROM JSON_TABLE(?, '$[*]' COLUMNS (partition_id INT PATH '$[0]', epoch BIGINT PATH '$[1]')) x
STRAIGHT_JOIN {cursor} c ON c.reader = ? AND c.partition_id = x.partition_id AND c.epoch = x.epoch
