-- How far every partition of every queue is; in rows without a queue, the age of the first message behind its cursor, and of the
-- first one that has no seq yet.
-- ? reader, ? reader, ? reader, ? reader; ? and ? how many of the messages without a seq are looked at: the first ones, in the
-- order of a tick, and the rest of the run that the last of them is in
-- Reads: queue and partition, all of them; per partition the newest link, the newest segment, the segment behind the cursor
-- and the message there, by their primary keys; pending by its primary key, from the first, and the messages that are
-- there, by id. Counts nothing.
-- A lease that has run out is none; nor is one that ends further ahead than it is long, since the clock jumped back: by more
-- than a second, for the statement's clock stands still from its beginning, and the lease may have been taken since.
-- One statement, so that all of it is true of one moment: what has no seq yet is behind no cursor either.
-- The segment behind a cursor has at most 256 messages, so it ends at most so far ahead. Its partition is compared twice: were
-- it equal to a column, the segments would be read from the oldest on, which may be settled and gone long since; so the range is
-- found anew for each partition. Not by an outer join: MariaDB would read the whole table for each.
-- Texts are returned as the bytes they are.
-- Differs from the PostgreSQL version in that there are no lateral joins on MariaDB, and in that pending says what a snapshot
-- says there.
-- Sorted by the partition too: where that comes from a join and is not named, MySQL reads a whole chain and sorts it. Not by
-- the reader: then MariaDB does so.
SELECT {now} AS now_us, CONVERT(q.name USING binary) AS queue, p.number, p.id AS partition_id,
       q.paused_at IS NOT NULL AS is_paused, coalesce(c.processed_seq, 0) AS processed_seq, coalesce(c.attempts, 0) AS attempts,
       CASE WHEN c.lease_until > {now} AND c.lease_until <= {now} + c.lease_ms * 1000 + 1000000 THEN c.owner END AS owner,
       c.lease_until - {now} AS micros_left, CONVERT(c.last_error USING binary) AS last_error,
       coalesce((SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = p.id
                 ORDER BY o.partition_id DESC, o.last_seq DESC LIMIT 1), 0) AS head,
       NULL AS created_us, NULL AS unsequenced_id
FROM {queue} q
STRAIGHT_JOIN {partition} p FORCE INDEX (queue_number) ON p.queue_id = q.id
LEFT JOIN {cursor} c FORCE INDEX (PRIMARY) ON c.reader = ? AND c.partition_id = p.id AND c.epoch = (
    SELECT n.epoch FROM {cursor} n WHERE n.reader = ? AND n.partition_id = p.id
    ORDER BY n.partition_id DESC, n.epoch DESC LIMIT 1)
UNION ALL
SELECT {now}, NULL, NULL, p.id, 0, 0, 0, NULL, NULL, NULL, 0, i.created_at, NULL
FROM {partition} p
STRAIGHT_JOIN {cursor} c FORCE INDEX (PRIMARY) ON c.reader = ? AND c.partition_id = p.id AND c.epoch = (
    SELECT n.epoch FROM {cursor} n WHERE n.reader = ? AND n.partition_id = p.id
    ORDER BY n.partition_id DESC, n.epoch DESC LIMIT 1)
STRAIGHT_JOIN {outgoing} o FORCE INDEX (PRIMARY) ON o.partition_id >= c.partition_id AND o.partition_id <= c.partition_id
    AND o.last_seq > c.processed_seq AND o.last_seq <= c.processed_seq + 256 AND o.first_seq <= c.processed_seq + 1
STRAIGHT_JOIN {incoming} i FORCE INDEX (PRIMARY)
    ON i.id = CAST(JSON_EXTRACT(o.ids, CONCAT('$[', c.processed_seq + 1 - o.first_seq, ']')) AS SIGNED)
UNION ALL
SELECT {now}, NULL, NULL, w.partition_id, 0, 0, 0, NULL, NULL, NULL, 0, min(i.created_at), min(i.id)
FROM (SELECT n.id, sum(n.last_id - n.id + 1) OVER (ORDER BY n.id) - (n.last_id - n.id + 1) AS before_it
      FROM (SELECT f.id, f.last_id FROM {pending} f ORDER BY f.id LIMIT ?) n) s
STRAIGHT_JOIN {pending} r FORCE INDEX (PRIMARY) ON r.id = s.id
STRAIGHT_JOIN JSON_TABLE(r.partitions, '$[*]' COLUMNS (n FOR ORDINALITY, partition_id INT PATH '$')) w
STRAIGHT_JOIN {incoming} i FORCE INDEX (PRIMARY) ON i.id = r.id + w.n - 1
WHERE s.before_it < ?
GROUP BY w.partition_id
