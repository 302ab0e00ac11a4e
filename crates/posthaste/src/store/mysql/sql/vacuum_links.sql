-- Removes links of cursors, oldest first. It waits for whoever builds on one, for a few seconds, and is then given up.
-- ? an array of [partition, epoch]; ? reader
-- Writes: cursor. Locks: these links. Index: its primary key, a probe for each link.
-- Differs from the PostgreSQL version in that a DELETE cannot be told not to wait; but nobody builds on what is not newest.
-- By the table's whole name: an alias to delete from is looked for in the session's database, and there may be none.
DELETE {cursor}
FROM JSON_TABLE(?, '$[*]' COLUMNS (partition_id INT PATH '$[0]', epoch BIGINT PATH '$[1]')) x
STRAIGHT_JOIN {cursor} FORCE INDEX (PRIMARY)
  ON {cursor}.reader = ? AND {cursor}.partition_id = x.partition_id AND {cursor}.epoch = x.epoch
