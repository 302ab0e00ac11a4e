-- Adds the first link of the cursor chain of each partition of a queue that was just added.
-- ? reader, ? the queue's name
-- Writes: cursor.
INSERT INTO {cursor} (reader, partition_id, epoch, processed_seq, attempts)
SELECT ?, p.id, 0, 0, 0 FROM {queue} q JOIN {partition} p ON p.queue_id = q.id WHERE q.name = ?
