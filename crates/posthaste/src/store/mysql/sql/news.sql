-- Is there anything to do? One cheap read for the watcher.
-- Reads: the first row of pending, the newest tick.
SELECT EXISTS (SELECT 1 FROM {pending}) AS is_pending, (SELECT t.id FROM {tick} t ORDER BY t.id DESC LIMIT 1) AS tick
