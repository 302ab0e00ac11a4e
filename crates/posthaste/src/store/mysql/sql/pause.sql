-- Pauses a queue, or resumes it. To pause it twice changes nothing.
-- ? whether to pause, ? queue
-- Writes: queue. Index: queue by its name.
UPDATE {queue} SET paused_at = CASE WHEN ? THEN coalesce(paused_at, {now}) END WHERE name = ?
