-- Finds dead letters, and locks them if that is wanted.
-- :limit; :skips_locked or :waits_for_locked; and dead_letter_criteria.sql
-- Writes: nothing. Locks: the rows that are found (UPDATE), until the end of the transaction.
-- Index: dead_letter by id, (queue, status, id) or (status, id), as the planner finds best for what is asked.
-- A line that names a value which is not given is left out; see criteria.rs.
SELECT d.id, octet_length(d.payload)::bigint + octet_length(d.reason) + coalesce(octet_length(d.headers), 0) AS bytes, d.token
FROM {dead_letter} d
{criteria}
ORDER BY d.id
LIMIT :limit
FOR UPDATE SKIP LOCKED /* :skips_locked */
FOR UPDATE /* :waits_for_locked */
