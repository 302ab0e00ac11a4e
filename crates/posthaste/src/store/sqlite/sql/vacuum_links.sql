-- Removes old links of cursors, oldest first; the newest of a chain stays.
-- ?1 reader, ?2 an array of [partition, first and end of the epochs, seq after which and seq up to which]
-- Writes: cursor. In the transaction of vacuum_messages.sql.
-- Index: cursor by its primary key.
DELETE FROM {cursor} WHERE (reader, partition_id, epoch) IN (
    SELECT l.reader, l.partition_id, l.epoch
    FROM json_each(?2) AS p
    CROSS JOIN {cursor} AS l ON l.reader = ?1 AND l.partition_id = p.value ->> 0 AND l.epoch >= p.value ->> 1 AND l.epoch < min(
        p.value ->> 2,
        (SELECT c.epoch FROM {cursor} AS c WHERE c.reader = ?1 AND c.partition_id = p.value ->> 0
         ORDER BY c.epoch DESC LIMIT 1)))
