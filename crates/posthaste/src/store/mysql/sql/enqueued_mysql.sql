-- The ids that a call was given: from the first one on, by its tag. Nothing is assumed of how far they are apart.
-- Reads: incoming by id; the rows are the caller's own, and next to each other unless others wrote at the same time.
-- For MySQL alone.
SELECT i.id FROM {incoming} i WHERE i.id >= ? AND i.tag = ? ORDER BY i.id LIMIT ?
