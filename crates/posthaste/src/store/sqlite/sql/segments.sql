-- Gives messages their seqs: adds segments to their partitions.
-- ?1 an array of [partition_id, first, last, ids]: places behind the partition's head, from 1
-- Writes: outgoing. In the transaction of a tick, or of a recovery. Several segments of a partition follow each other in one
-- statement, so the heads are read before any of them is written.
-- Index: outgoing by its primary key, newest first.
WITH heads (partition_id, seq) AS MATERIALIZED (
    SELECT p.id, coalesce((SELECT o.last_seq FROM {outgoing} AS o WHERE o.partition_id = p.id
                           ORDER BY o.last_seq DESC LIMIT 1), 0)
    FROM (SELECT DISTINCT s.value ->> 0 AS id FROM json_each(?1) AS s) AS p
)
INSERT INTO {outgoing} (partition_id, first_seq, last_seq, ids)
SELECT h.partition_id, h.seq + (s.value ->> 1), h.seq + (s.value ->> 2), s.value ->> 3
FROM json_each(?1) AS s JOIN heads AS h ON h.partition_id = s.value ->> 0
