-- Adds a queue, unless it is there; its partitions follow in the same transaction.
-- Writes: queue. Locks: the unique key of the name keeps two starters apart: the second waits for the first and then adds
-- nothing.
-- Differs from the PostgreSQL version in that one statement writes to one table.
INSERT IGNORE INTO {queue} (name, partitions, created_at) VALUES (?, ?, {now})
