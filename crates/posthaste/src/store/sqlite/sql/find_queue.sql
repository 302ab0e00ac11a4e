-- A queue's partitions, in order; no rows if nobody registered it.
-- Reads: queue by its unique name, partition by (queue_id, number).
SELECT p.id FROM {queue} AS q JOIN {partition} AS p ON p.queue_id = q.id WHERE q.name = ?1 ORDER BY p.number
