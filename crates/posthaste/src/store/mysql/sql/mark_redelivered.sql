-- Resolves dead letters that are locked: they were sent back into their queues.
-- :ids, :new_ids, of the new messages, in the same order
-- Writes: dead_letter. Index: dead_letter by its primary key.
-- Differs from the PostgreSQL version in that it does not join: some sessions do not let anybody update what is joined with a list. What
-- finds the new ids looks through the old ones for each row, so the lists are short.
UPDATE {dead_letter} FORCE INDEX (PRIMARY) SET
    status = 'resolved', changed_at = {now}, token = NULL, claimed_until = NULL,
    redelivered_as = CAST(ELT(FIELD(id, :ids), :new_ids) AS SIGNED)
WHERE id IN (:ids)
