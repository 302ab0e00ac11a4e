-- Adds a queue, unless it is there: no row then.
-- ?1 name, ?2 number of partitions
-- Writes: queue. Inside a transaction that excludes other writers, with the two statements that follow.
-- Differs from the PostgreSQL version in that it takes a statement a table.
INSERT INTO {queue} (name, partitions) VALUES (?1, ?2) ON CONFLICT (name) DO NOTHING RETURNING id
