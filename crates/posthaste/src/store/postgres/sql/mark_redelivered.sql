-- Resolves dead letters that are locked: they were sent back into their queues.
-- :ids, :new_ids, of the new messages, in the same order
-- Writes: dead_letter. Index: dead_letter by id.
-- A line that names a value which is not given is left out; see criteria.rs.
UPDATE {dead_letter} d SET
    status = 'resolved', changed_at = clock_timestamp(), token = NULL, claimed_until = NULL, redelivered_as = sent.new_id
FROM unnest(:ids::bigint[], :new_ids::bigint[]) AS sent (id, new_id)
WHERE d.id = sent.id
