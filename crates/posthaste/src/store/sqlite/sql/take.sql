-- The messages that the newest tick has not seen, by id.
-- ?1 how many at most
-- Reads: the newest tick; incoming by id. Inside the tick's transaction.
SELECT t.id AS tick_id, i.id, i.partition_id
FROM (SELECT n.id, n.last_id FROM {tick} AS n ORDER BY n.id DESC LIMIT 1) AS t
CROSS JOIN {incoming} AS i ON i.id > t.last_id
ORDER BY i.id LIMIT ?1
