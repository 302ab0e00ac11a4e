-- Whether a queue is paused.
-- ?1 queue
-- Reads: queue by its name.
SELECT count(*) FROM {queue} WHERE name = ?1 AND paused_at IS NOT NULL
