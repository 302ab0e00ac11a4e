-- The messages of some partitions that no tick has taken, the first ones by id behind one.
-- ?1 an array of partitions, ?2 an id, ?3 how many at most
-- Reads: the newest tick; incoming by id, on from what that saw.
-- Differs from the PostgreSQL version in that no tick has taken what is above the newest one's last id.
SELECT i.id, i.partition_id, i.key, i.headers, i.payload_type, i.payload, i.created_at AS created_us
FROM {incoming} AS i
WHERE i.id > max(?2, (SELECT t.last_id FROM {tick} AS t ORDER BY t.id DESC LIMIT 1))
  AND i.partition_id IN (SELECT p.value FROM json_each(?1) AS p)
ORDER BY i.id LIMIT ?3
