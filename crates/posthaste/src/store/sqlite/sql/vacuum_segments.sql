-- Removes the segments that every reader has passed, oldest first; the newest of a partition stays.
-- ?1 reader, ?2 an array of [partition, first and end of the epochs, seq after which and seq up to which]
-- Writes: outgoing. In the transaction of vacuum_messages.sql.
-- Index: cursor and outgoing by their primary keys.
DELETE FROM {outgoing} WHERE (partition_id, last_seq) IN (
    SELECT o.partition_id, o.last_seq
    FROM json_each(?2) AS p
    CROSS JOIN {outgoing} AS o ON o.partition_id = p.value ->> 0 AND o.last_seq > p.value ->> 3 AND o.last_seq <= min(
        p.value ->> 4,
        (SELECT c.processed_seq FROM {cursor} AS c WHERE c.reader = ?1 AND c.partition_id = p.value ->> 0
         ORDER BY c.epoch DESC LIMIT 1),
        (SELECT n.last_seq - 1 FROM {outgoing} AS n WHERE n.partition_id = p.value ->> 0 ORDER BY n.last_seq DESC LIMIT 1)))
