-- Removes segments.
-- ? an array of [partition, last_seq]
-- Writes: outgoing. Locks: these segments. Index: its primary key, a probe for each segment.
DELETE o
FROM JSON_TABLE(?, '$[*]' COLUMNS (partition_id INT PATH '$[0]', last_seq BIGINT PATH '$[1]')) x
STRAIGHT_JOIN {outgoing} o FORCE INDEX (PRIMARY) ON o.partition_id = x.partition_id AND o.last_seq = x.last_seq
