-- Gives messages their seqs: adds segments to their partitions.
-- ?1 an array of [partition_id, first, last, ids]: places behind the partition's head, from 1
-- Writes: outgoing. In the transaction of a recovery; tick.sql does the same. What is selected is all there before any of it is written, so
-- several segments of a partition have the same head.
-- Index: outgoing by its primary key, newest first.
INSERT INTO {outgoing} (partition_id, first_seq, last_seq, ids)
SELECT s.partition_id, s.head + s.first, s.head + s.last, s.ids
FROM (
    SELECT m.value ->> 0 AS partition_id, m.value ->> 1 AS first, m.value ->> 2 AS last, m.value ->> 3 AS ids,
           coalesce((SELECT o.last_seq FROM {outgoing} AS o WHERE o.partition_id = m.value ->> 0
                     ORDER BY o.last_seq DESC LIMIT 1), 0) AS head
    FROM json_each(?1) AS m
) AS s
