-- Adds a queue with its partitions and the first link of each cursor chain, unless it is there.
-- Writes: queue, partition, cursor. Locks: the unique key of the name keeps two starters apart: the second waits for
-- the first and then adds nothing.
WITH added AS (
    INSERT INTO {queue} (name, partitions) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING RETURNING id
), numbered AS (
    INSERT INTO {partition} (queue_id, number)
    SELECT added.id, n FROM added, generate_series(0, $2 - 1) AS n
    RETURNING id
)
INSERT INTO {cursor} (reader, partition_id, epoch, processed_seq, attempts)
SELECT $3, id, 0, 0, 0 FROM numbered
