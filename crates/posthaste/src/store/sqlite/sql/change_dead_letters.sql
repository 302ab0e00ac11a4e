-- Changes the state of dead letters that are locked. A claim that has not ended well was a try.
-- :ids, :status; :has_failed; :token and :claim_us, microseconds, or :lets_go; :reason
-- Writes: dead_letter. Index: dead_letter by id.
-- A line that names a value which is not given is left out; see criteria.rs.
UPDATE {dead_letter} SET
    attempts = min(attempts + iif(status = 'reprocessing', 1, 0), 2147483647), /* :has_failed */
    token = :token, claimed_until = {now} + :claim_us,
    token = NULL, claimed_until = NULL, /* :lets_go */
    reason = :reason,
    status = :status,
    changed_at = {now}
WHERE id IN (SELECT value FROM json_each(:ids))
