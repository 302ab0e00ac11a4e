-- Which runs are pending from one id to another: those of others that are committed, too.
-- ? the first id, ? the last
-- Reads: pending by its primary key, a range. Locks nothing, unless the caller's session is SERIALIZABLE.
SELECT p.id FROM {pending} p WHERE p.id BETWEEN ? AND ?
