-- Changes the state of dead letters that are locked. A claim that has not ended well was a try.
-- :ids, :status; :has_failed; :token and :claim_us, microseconds, or :lets_go; :reason
-- Writes: dead_letter. Index: dead_letter by id.
-- A line that names a value which is not given is left out; see criteria.rs.
UPDATE {dead_letter} SET
    attempts = least(attempts::bigint + CASE status WHEN 'reprocessing' THEN 1 ELSE 0 END, 2147483647), /* :has_failed */
    token = :token, claimed_until = clock_timestamp() + :claim_us * interval '1 microsecond',
    token = NULL, claimed_until = NULL, /* :lets_go */
    reason = :reason,
    status = :status,
    changed_at = clock_timestamp()
WHERE id = ANY (:ids)
