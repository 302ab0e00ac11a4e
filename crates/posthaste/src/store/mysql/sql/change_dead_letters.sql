-- Changes the state of dead letters that are locked. A claim that has not ended well was a try.
-- :ids, :status; :has_failed; :token and :claim_us, microseconds, or :lets_go; :reason
-- Writes: dead_letter. Index: dead_letter by id.
-- Forced to use the primary key: a small table would be scanned, and rows waited for that others have locked.
-- Differs from the PostgreSQL version in that the order of the assignments matters here: each sees what the one before it did.
-- A line that names a value which is not given is left out; see criteria.rs.
UPDATE {dead_letter} FORCE INDEX (PRIMARY) SET
    attempts = least(attempts + CASE status WHEN 'reprocessing' THEN 1 ELSE 0 END, 2147483647), /* :has_failed */
    token = :token, claimed_until = {now} + :claim_us,
    token = NULL, claimed_until = NULL, /* :lets_go */
    reason = CONVERT(:reason USING utf8mb4),
    status = :status,
    changed_at = {now}
WHERE id IN (:ids)
