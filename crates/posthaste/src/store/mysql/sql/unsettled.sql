-- Which of these partitions have messages that are committed and not settled, and what is first of them: at one moment, for a
-- tick moves messages from one table's account to the other's.
-- ? an array of partitions; ? reader, ? reader
-- Reads: per partition the newest link, the newest segment and the one behind the cursor, by their primary keys; all of pending;
-- incoming by id.
-- Differs from the PostgreSQL version in that pending says what no tick has taken, and in that there are no lateral joins on MariaDB.
-- Sorted by the partition too: where that comes from a join and is not named, MySQL reads a whole chain and sorts it. Not by
-- the reader: then MariaDB does so.
SELECT s.partition_id, CAST(greatest(s.head - s.processed_seq, 0) AS SIGNED) AS sequenced, s.unsequenced, i.id AS first_id,
       CAST({now} - i.created_at AS SIGNED) AS age_us, s.attempts, CONVERT(s.last_error USING binary) AS last_error
FROM (
    SELECT x.id AS partition_id, c.processed_seq, c.attempts, c.last_error, coalesce(f.unsequenced, 0) AS unsequenced, f.first_id,
           coalesce((SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = x.id
                     ORDER BY o.partition_id DESC, o.last_seq DESC LIMIT 1), 0) AS head,
           (SELECT JSON_EXTRACT(o.ids, concat('$[', c.processed_seq + 1 - o.first_seq, ']'))
            FROM {outgoing} o WHERE o.partition_id = x.id AND o.last_seq > c.processed_seq
            ORDER BY o.partition_id, o.last_seq LIMIT 1) AS next_id
    FROM JSON_TABLE(?, '$[*]' COLUMNS (id INT PATH '$')) x
    STRAIGHT_JOIN {cursor} c FORCE INDEX (PRIMARY) ON c.reader = ? AND c.partition_id = x.id AND c.epoch = (
        SELECT n.epoch FROM {cursor} n WHERE n.reader = ? AND n.partition_id = x.id
        ORDER BY n.partition_id DESC, n.epoch DESC LIMIT 1)
    LEFT JOIN (SELECT u.partition_id, count(*) AS unsequenced, min(p.id + u.n - 1) AS first_id
               FROM {pending} p
               STRAIGHT_JOIN JSON_TABLE(p.partitions, '$[*]' COLUMNS (n FOR ORDINALITY, partition_id INT PATH '$')) u
               GROUP BY u.partition_id) f
           ON f.partition_id = x.id
) s
LEFT JOIN {incoming} i FORCE INDEX (PRIMARY) ON i.id = CAST(coalesce(s.next_id, s.first_id) AS SIGNED)
WHERE s.head > s.processed_seq OR s.unsequenced > 0
ORDER BY s.partition_id LIMIT 64
