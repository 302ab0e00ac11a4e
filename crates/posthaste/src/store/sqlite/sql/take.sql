-- The messages that the newest tick has not seen, by id.
-- ?1 how many at most
-- Reads: the newest tick; incoming by id, from behind what that tick saw. Inside the tick's transaction.
SELECT (SELECT max(t.id) FROM {tick} AS t) AS tick_id, i.id, i.partition_id
FROM {incoming} AS i
WHERE i.id > (SELECT t.last_id FROM {tick} AS t ORDER BY t.id DESC LIMIT 1)
ORDER BY i.id LIMIT ?1
