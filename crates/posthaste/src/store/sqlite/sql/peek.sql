-- The messages of some partitions behind an id, in the order of their ids, settled or not.
-- ?1 an array of partitions, ?2 the id behind which to begin, ?3 how many at most
-- Reads: incoming by id, on from there. There is no index by partition: it passes the messages of all others.
SELECT i.id, i.partition_id, i.key, i.headers, i.payload_type, i.payload, i.created_at AS created_us
FROM {incoming} AS i
WHERE i.id > ?2 AND i.partition_id IN (SELECT p.value FROM json_each(?1) AS p)
ORDER BY i.id LIMIT ?3
