-- Adds the partitions of a queue that was just added.
-- ?1 the queue's id, ?2 how many
-- Writes: partition. In the transaction of register_queue.sql.
WITH RECURSIVE numbered (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbered WHERE n + 1 < ?2)
INSERT INTO {partition} (queue_id, number) SELECT ?1, n FROM numbered
