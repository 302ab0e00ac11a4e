-- Removes links of cursors, oldest first. It waits for whoever builds on one, for a few seconds, and is then given up.
-- ? an array of [partition, epoch]; ? reader
-- Writes: cursor. Locks: these links. Index: its primary key, a probe for each link.
-- Differs from the PostgreSQL version in that a DELETE cannot be told not to wait; but nobody builds on what is not newest.
DELETE c
FROM JSON_TABLE(?, '$[*]' COLUMNS (partition_id INT PATH '$[0]', epoch BIGINT PATH '$[1]')) x
STRAIGHT_JOIN {cursor} c FORCE INDEX (PRIMARY) ON c.reader = ? AND c.partition_id = x.partition_id AND c.epoch = x.epoch
