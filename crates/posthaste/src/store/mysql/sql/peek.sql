-- The messages of some partitions behind an id, in the order of their ids, settled or not.
-- ? the id behind which to begin, ? an array of partitions, ? how many at most
-- Reads: incoming by id, on from there. There is no index by partition: it passes the messages of all others.
-- Texts are returned as the bytes they are: the caller's session may be set to another character set.
-- Differs from the PostgreSQL version in that the partitions are no table, with which the optimizer might begin.
SELECT i.id, i.partition_id, CONVERT(i.`key` USING binary) AS `key`, CONVERT(i.headers USING binary) AS headers,
       CONVERT(i.payload_type USING binary) AS payload_type, i.payload, i.created_at AS created_us
FROM {incoming} i FORCE INDEX (PRIMARY)
WHERE i.id > ? AND JSON_CONTAINS(?, CAST(i.partition_id AS CHAR))
ORDER BY i.id LIMIT ?
