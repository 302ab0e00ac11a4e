-- Takes back that messages are pending, in the transaction that wrote it.
-- ? the id of a run that is there: to look for one that is not would lock the gap that it would be in, against every producer
-- Writes: pending. Locks: that row. Index: pending by its primary key.
DELETE FROM {pending} WHERE id = ?
