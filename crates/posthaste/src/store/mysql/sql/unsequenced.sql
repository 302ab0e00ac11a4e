-- The messages of some partitions that are committed and that no tick has taken, the first ones by id behind one.
-- ? an id, ? an array of partitions, ? how many at most
-- Reads: pending by its primary key, from there on; incoming by id.
-- Texts are returned as the bytes they are: the caller's session may be set to another character set.
-- Differs from the PostgreSQL version in that pending says what no tick has taken.
SELECT i.id, i.partition_id, CONVERT(i.`key` USING binary) AS `key`, CONVERT(i.headers USING binary) AS headers,
       CONVERT(i.payload_type USING binary) AS payload_type, i.payload, i.created_at AS created_us
FROM {pending} p FORCE INDEX (PRIMARY)
STRAIGHT_JOIN {incoming} i FORCE INDEX (PRIMARY) ON i.id = p.id
WHERE p.id > ? AND JSON_CONTAINS(?, CAST(p.partition_id AS CHAR))
ORDER BY p.id LIMIT ?
