-- Gives the messages that a tick took their seqs, by adding segments to their partitions, and appends the tick to the chain; unless
-- another tick was faster. Two statements, in one go and in one transaction.
-- ?1 the tick it builds on, ?2 an array of [partition_id, first, last, ids]: places behind the partition's head, from 1; ?3 the last
-- message that it took
-- Writes: outgoing, tick; nothing if another tick was faster, and then there is no row. Durable: the connection is.
-- Locks: the database against other writers, from the beginning of the transaction: so the tick that it builds on is the newest,
-- and what it took is what comes right behind that, whoever has written since it looked. What is selected is all there before any
-- of it is written, so several segments of a partition have the same head.
-- Index: tick by id; outgoing by its primary key, newest first.
-- Differs from the PostgreSQL version in that take.sql has looked before.
INSERT INTO {outgoing} (partition_id, first_seq, last_seq, ids)
SELECT s.partition_id, s.head + s.first, s.head + s.last, s.ids
FROM (
    SELECT m.value ->> 0 AS partition_id, m.value ->> 1 AS first, m.value ->> 2 AS last, m.value ->> 3 AS ids,
           coalesce((SELECT o.last_seq FROM {outgoing} AS o WHERE o.partition_id = m.value ->> 0
                     ORDER BY o.last_seq DESC LIMIT 1), 0) AS head
    FROM json_each(?2) AS m
) AS s
WHERE (SELECT max(t.id) FROM {tick} AS t) = ?1;
INSERT INTO {tick} (id, last_id)
SELECT ?1 + 1, ?3 WHERE (SELECT max(t.id) FROM {tick} AS t) = ?1
RETURNING id
