-- Adds the partitions of a queue that was just added.
-- ? an array of their numbers, ? the queue's name
-- Writes: partition.
INSERT INTO {partition} (queue_id, number)
SELECT q.id, x.number FROM JSON_TABLE(?, '$[*]' COLUMNS (number INT PATH '$')) x JOIN {queue} q ON q.name = ?
