-- Appends to the chain of ticks.
-- ?1 the tick it builds on, ?2 the last message that it took
-- Writes: tick. Locks: none of its own: the transaction that it is in excludes other writers, has read the tick that it builds
-- on, and writes the segments too. Durable: the connection is.
-- Differs from the PostgreSQL version in that a tick takes several statements.
INSERT INTO {tick} (id, last_id) VALUES (?1 + 1, ?2)
