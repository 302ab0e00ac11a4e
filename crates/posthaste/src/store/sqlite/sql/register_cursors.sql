-- Adds the first link of the cursor chain of each partition of a queue that was just added.
-- ?1 the queue's id, ?2 reader
-- Writes: cursor. In the transaction of register_queue.sql.
INSERT INTO {cursor} (reader, partition_id, epoch, processed_seq, attempts)
SELECT ?2, p.id, 0, 0, 0 FROM {partition} AS p WHERE p.queue_id = ?1
