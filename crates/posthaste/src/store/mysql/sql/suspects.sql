-- Messages that should be pending, or in a segment behind their partition's cursor, and are not: settled a moment ago, or
-- never to be delivered. A window over the messages that are old enough to have been delivered and removed long since.
-- ? how old in seconds they must be; ? the id behind which a run may begin that reaches into the window; ? the id behind which
-- the window begins, ? how many messages it has; ? reader; ? and ? the window again
-- Reads: incoming by id; pending by its primary key, from there on; per message the newest link of its partition and the segments
-- behind it, until it is found. Most segments do not even have its digits, which is found out without reading them as JSON.
-- Differs from the PostgreSQL version in that pending says what a snapshot says there.
-- Sorted by the partition too: where that comes from a join and is not named, MySQL reads a whole chain and sorts it. Not by
-- the reader: then MariaDB does so.
SELECT i.id,
       i.created_at < {now} - ? * 1000000
       AND i.id NOT IN (SELECT p.id + u.n - 1 FROM {pending} p
                        STRAIGHT_JOIN JSON_TABLE(p.partitions, '$[*]' COLUMNS (n FOR ORDINALITY)) u
                        WHERE p.id > ? AND p.id <= (
                            SELECT max(w.id) FROM (SELECT id FROM {incoming} WHERE id > ? ORDER BY id LIMIT ?) w))
       AND NOT EXISTS (
           SELECT 1 FROM {outgoing} o
           WHERE o.partition_id = i.partition_id AND o.last_seq > coalesce((
                   SELECT c.processed_seq FROM {cursor} c WHERE c.reader = ? AND c.partition_id = i.partition_id
                   ORDER BY c.partition_id DESC, c.epoch DESC LIMIT 1), 0)
             AND LOCATE(i.id, o.ids) > 0 AND JSON_CONTAINS(o.ids, CAST(i.id AS CHAR))) AS is_suspect
FROM (SELECT id, partition_id, created_at FROM {incoming} WHERE id > ? ORDER BY id LIMIT ?) i
ORDER BY i.id
