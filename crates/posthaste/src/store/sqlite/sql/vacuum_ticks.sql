-- Removes old ticks, oldest first; the newest stays.
-- ?1 the first tick that may be left, ?2 how many at most
-- Writes: tick. In the transaction of vacuum_messages.sql.
-- Index: tick by id.
DELETE FROM {tick} WHERE id IN (
    SELECT t.id FROM {tick} AS t WHERE t.id >= ?1 AND t.id < (SELECT max(n.id) FROM {tick} AS n) ORDER BY t.id LIMIT ?2)
RETURNING id
