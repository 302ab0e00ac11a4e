-- Removes segments.
-- ? an array of [partition, last_seq]
-- Writes: outgoing. Locks: these segments. Index: its primary key, a probe for each segment.
-- By the table's whole name: an alias to delete from is looked for in the session's database, and there may be none.
DELETE {outgoing}
FROM JSON_TABLE(?, '$[*]' COLUMNS (partition_id INT PATH '$[0]', last_seq BIGINT PATH '$[1]')) x
STRAIGHT_JOIN {outgoing} FORCE INDEX (PRIMARY)
  ON {outgoing}.partition_id = x.partition_id AND {outgoing}.last_seq = x.last_seq
