-- The messages of a partition that have a seq behind this one, in no order, settled or not: those that vacuum has not removed.
-- ? the seq behind which to begin, ? partition, ? the seq again; ? how many seqs at most, thrice
-- Reads: outgoing by its primary key, a range that begins with the first segment which is left; incoming by id. A segment has at
-- most 256 messages, so none that ends further ahead has any of them. The partition is compared twice: were it equal to one, its
-- segments would be read from the oldest on.
-- Texts are returned as the bytes they are: the caller's session may be set to another character set.
-- Differs from the PostgreSQL version in that the range has an end: a limit would be applied after everything was read.
SELECT CAST(o.first_seq + u.n - 1 AS SIGNED) AS seq, i.id, i.partition_id, CONVERT(i.`key` USING binary) AS `key`,
       CONVERT(i.headers USING binary) AS headers, CONVERT(i.payload_type USING binary) AS payload_type, i.payload,
       i.created_at AS created_us
FROM (SELECT s.partition_id, greatest(s.first_seq - 1, ?) AS after_seq FROM {outgoing} s WHERE s.partition_id = ? AND s.last_seq > ?
      ORDER BY s.partition_id, s.last_seq LIMIT 1) f
STRAIGHT_JOIN {outgoing} o FORCE INDEX (PRIMARY)
    ON o.partition_id >= f.partition_id AND o.partition_id <= f.partition_id
    AND o.last_seq > f.after_seq AND o.last_seq < f.after_seq + ? + 256 AND o.first_seq <= f.after_seq + ?
STRAIGHT_JOIN JSON_TABLE(o.ids, '$[*]' COLUMNS (n FOR ORDINALITY, id BIGINT PATH '$')) u
STRAIGHT_JOIN {incoming} i FORCE INDEX (PRIMARY) ON i.id = u.id
WHERE o.first_seq + u.n - 1 > f.after_seq AND o.first_seq + u.n - 1 <= f.after_seq + ?
