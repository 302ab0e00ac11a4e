-- Begins a tick: appends to the chain. Whoever has appended is the only one who ticks until it commits.
-- By the text protocol, in one round trip with BEGIN and the read of what is pending, which must come after it.
-- Writes: tick. Locks: the newest link, or fails at once if another process ticks.
-- Index: tick by its primary key. In a derived table: MariaDB would read, and lock, all ticks to insert behind one of them, and
-- give up while vacuum removes the old ones.
-- Differs from the PostgreSQL version in that there the link is a snapshot, and one statement does it all.
INSERT INTO {tick} (id)
SELECT t.id + 1 FROM (SELECT n.id FROM {tick} n ORDER BY n.id DESC LIMIT 1 FOR UPDATE NOWAIT) t
