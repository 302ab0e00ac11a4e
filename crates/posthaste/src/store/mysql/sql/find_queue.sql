-- A queue's partitions, in order; no rows if nobody registered it.
-- Reads: queue by its unique name, partition by (queue_id, number).
-- The limit is the most that there can be: the caller's session may have another one for statements that have none.
SELECT p.id FROM {queue} q JOIN {partition} p ON p.queue_id = q.id WHERE q.name = ? ORDER BY p.number LIMIT 64
