-- Pauses a queue, or resumes it. To pause it twice changes nothing.
-- ?1 queue, ?2 whether to pause
-- Writes: queue. Index: queue by its name.
UPDATE {queue} SET paused_at = iif(?2, coalesce(paused_at, {now}), NULL) WHERE name = ?1
