-- Removes ticks that are locked.
-- ? the first, ? the last
-- Writes: tick. Index: its primary key.
DELETE FROM {tick} WHERE id >= ? AND id <= ?
