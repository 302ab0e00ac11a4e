-- Resolves dead letters that are locked: they were sent back into their queues.
-- :ids, :new_ids, of the new messages, in the same order
-- Writes: dead_letter. Index: dead_letter by id.
-- A line that names a value which is not given is left out; see criteria.rs.
UPDATE {dead_letter} SET
    status = 'resolved', changed_at = {now}, token = NULL, claimed_until = NULL, redelivered_as = sent.new_id
FROM (
    SELECT old.value AS old_id, new.value AS new_id
    FROM json_each(:ids) AS old JOIN json_each(:new_ids) AS new ON new.key = old.key
) AS sent
WHERE id = sent.old_id
