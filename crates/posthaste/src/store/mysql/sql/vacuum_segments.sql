-- Locks segments that are settled, or fails at once if somebody else has one; and the newest of a partition, which stays.
-- ? an array of [partition, seq after which, seq up to which]
-- Locks: these segments. Index: outgoing by its primary key, a range for each partition.
SELECT o.partition_id, o.last_seq, o.ids
FROM JSON_TABLE(?, '$[*]' COLUMNS (id INT PATH '$[0]', after_seq BIGINT PATH '$[1]', to_seq BIGINT PATH '$[2]')) x
STRAIGHT_JOIN {outgoing} o ON o.partition_id = x.id AND o.last_seq > x.after_seq AND o.last_seq <= x.to_seq
FOR UPDATE NOWAIT
