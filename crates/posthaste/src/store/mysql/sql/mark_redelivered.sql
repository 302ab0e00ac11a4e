-- Resolves dead letters that are locked: they were sent back into their queues.
-- :ids, :new_ids, of the new messages, in the same order
-- Writes: dead_letter. Index: dead_letter by id.
-- A line that names a value which is not given is left out; see criteria.rs.
UPDATE JSON_TABLE('[:ids]', '$[*]' COLUMNS (n FOR ORDINALITY, id BIGINT PATH '$')) old
STRAIGHT_JOIN JSON_TABLE('[:new_ids]', '$[*]' COLUMNS (n FOR ORDINALITY, id BIGINT PATH '$')) sent ON sent.n = old.n
STRAIGHT_JOIN {dead_letter} d FORCE INDEX (PRIMARY) ON d.id = old.id
SET d.status = 'resolved', d.changed_at = {now}, d.token = NULL, d.claimed_until = NULL, d.redelivered_as = sent.id
