-- Locks old ticks, oldest first, or fails at once if somebody builds on one. The newest stays.
-- ? the first, ? the newest, ? how many
-- Locks: these links. Index: tick by its primary key.
SELECT t.id FROM {tick} t WHERE t.id >= ? AND t.id < ? ORDER BY t.id LIMIT ? FOR UPDATE NOWAIT
