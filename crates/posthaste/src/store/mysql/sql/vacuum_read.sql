-- The segments that are settled, and the newest of a partition, if all of it is.
-- By the text protocol; {ranges} is for each partition a condition of three numbers of ours: a join with ranges that are not
-- constants would read whole partitions.
-- Reads: outgoing by its primary key, a range for each partition.
SELECT o.partition_id, o.last_seq, o.ids FROM {outgoing} o FORCE INDEX (PRIMARY) WHERE {ranges}
