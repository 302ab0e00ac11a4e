-- The messages of some partitions that are committed and that no tick has taken, the first ones by id behind one.
-- ? the id behind which a run may begin that has messages behind another; ? that other; ? an array of partitions, ? how many at most
-- Reads: pending by its primary key, from there on; incoming by id.
-- Texts are returned as the bytes they are: the caller's session may be set to another character set.
-- Sorted by the run alone, in which they come as they are: to sort them further, all of pending would be read.
-- Differs from the PostgreSQL version in that pending says what no tick has taken.
SELECT i.id, i.partition_id, CONVERT(i.`key` USING binary) AS `key`, CONVERT(i.headers USING binary) AS headers,
       CONVERT(i.payload_type USING binary) AS payload_type, i.payload, i.created_at AS created_us
FROM {pending} p FORCE INDEX (PRIMARY)
STRAIGHT_JOIN JSON_TABLE(p.partitions, '$[*]' COLUMNS (n FOR ORDINALITY, partition_id INT PATH '$')) u
STRAIGHT_JOIN {incoming} i FORCE INDEX (PRIMARY) ON i.id = p.id + u.n - 1
WHERE p.id > ? AND p.id + u.n - 1 > ? AND JSON_CONTAINS(?, CAST(u.partition_id AS CHAR))
ORDER BY p.id LIMIT ?
