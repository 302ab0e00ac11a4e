-- The messages that the newest tick has not seen, the first ones by id; one row without a message if there is none.
-- ?1 how many at most
-- Reads: the newest tick; incoming by id, from behind what that tick saw.
-- Differs from the PostgreSQL version in that a tick looks first: whoever wants to write keeps everybody else from it.
SELECT t.id AS tick_id, t.last_id, i.id, i.partition_id
FROM (SELECT n.id, n.last_id FROM {tick} AS n ORDER BY n.id DESC LIMIT 1) AS t
LEFT JOIN (
    SELECT m.id, m.partition_id FROM {incoming} AS m
    WHERE m.id > (SELECT n.last_id FROM {tick} AS n ORDER BY n.id DESC LIMIT 1)
    ORDER BY m.id LIMIT ?1
) AS i ON true
