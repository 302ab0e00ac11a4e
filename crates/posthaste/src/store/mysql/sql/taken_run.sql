-- Removes what a tick took, where no message lies between what was taken.
-- ? the first id of a run, ? the last, ? how many rows
-- Writes: pending. Locks: these rows alone: the limit ends it before it looks at the row behind them, which may be an open
-- producer's.
-- Index: pending by its primary key, a range.
DELETE FROM {pending} WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?
