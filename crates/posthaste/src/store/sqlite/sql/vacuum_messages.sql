-- Removes the messages of the segments that every reader has passed, the newest segment included.
-- ?1 reader, ?2 an array of [partition, first and end of the epochs, seq after which and seq up to which]
-- Writes: incoming. With the statements that follow in one transaction, which excludes other writers: nobody builds on any of
-- it. How far a partition is settled is read by the statement itself.
-- Index: cursor and outgoing by their primary keys; incoming by id.
-- Differs from the PostgreSQL version in that it takes a statement a table, and nobody need give up for somebody else.
DELETE FROM {incoming} WHERE id IN (
    SELECT m.value
    FROM json_each(?2) AS p
    CROSS JOIN {outgoing} AS o ON o.partition_id = p.value ->> 0 AND o.last_seq > p.value ->> 3 AND o.last_seq <= min(
        p.value ->> 4,
        (SELECT c.processed_seq FROM {cursor} AS c WHERE c.reader = ?1 AND c.partition_id = p.value ->> 0
         ORDER BY c.epoch DESC LIMIT 1))
    CROSS JOIN json_each(o.ids) AS m)
