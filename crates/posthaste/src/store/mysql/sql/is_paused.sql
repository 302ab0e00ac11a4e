-- Whether a queue is paused.
-- ? queue
-- Reads: queue by its name.
SELECT count(*) FROM {queue} WHERE name = ? AND paused_at IS NOT NULL
