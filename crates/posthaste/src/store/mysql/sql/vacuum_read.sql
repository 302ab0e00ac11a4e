-- The segments that are settled, and the newest of a partition, if all of it is; and whether their messages are there, of which
-- there are all or none: those of what was the newest may be gone.
-- By the text protocol; {ranges} is for each partition a condition of three numbers of ours: a join with ranges that are not
-- constants would read whole partitions.
-- Reads: outgoing by its primary key, a range for each partition; incoming by id, the first of each segment.
SELECT o.partition_id, o.last_seq, o.ids,
       EXISTS (SELECT 1 FROM {incoming} i WHERE i.id = CAST(JSON_EXTRACT(o.ids, '$[0]') AS SIGNED)) AS is_there
FROM {outgoing} o FORCE INDEX (PRIMARY) WHERE {ranges}
