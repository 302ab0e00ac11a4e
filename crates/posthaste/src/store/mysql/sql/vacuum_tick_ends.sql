-- The oldest and the newest tick.
-- Reads: tick by its primary key, at either end.
SELECT (SELECT t.id FROM {tick} t WHERE t.id >= ? ORDER BY t.id LIMIT 1) AS oldest,
       (SELECT t.id FROM {tick} t ORDER BY t.id DESC LIMIT 1) AS newest
