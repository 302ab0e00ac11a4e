-- Removes messages whose ids follow each other without a hole.
-- ? the first, ? the last, ? how many
-- Writes: incoming. Locks: these rows alone: the limit ends it before it looks at the row behind them, which may be an open
-- producer's.
-- Index: incoming by its primary key, a range.
DELETE FROM {incoming} WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?
