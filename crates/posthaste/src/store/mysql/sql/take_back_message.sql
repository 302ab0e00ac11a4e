-- Takes a message back, in the transaction that wrote it: a caller who commits all the same would keep one that nobody delivers.
-- ? the id of a message that is there: to look for one that is not would lock the gap that it would be in, against every producer
-- Writes: incoming. Locks: that row. Index: incoming by its primary key.
DELETE FROM {incoming} WHERE id = ?
