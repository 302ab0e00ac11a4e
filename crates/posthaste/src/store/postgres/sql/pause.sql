-- Pauses a queue, or resumes it. To pause it twice changes nothing.
-- $1 queue, $2 whether to pause
-- Writes: queue. Index: queue by its name.
UPDATE {queue} SET paused_at = CASE WHEN $2 THEN coalesce(paused_at, clock_timestamp()) END WHERE name = $1
