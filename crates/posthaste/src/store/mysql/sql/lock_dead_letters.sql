-- Locks dead letters that were found, those that are still what was looked for.
-- :limit, which a caller's session may have one of its own for; :skips_locked or :waits_for_locked; and dead_letter_criteria.sql, with ids
-- Writes: nothing. Locks: the rows by their ids, until the end of the transaction.
-- Index: dead_letter by its primary key.
-- Differs from PostgreSQL, where the statement that finds them locks them.
-- A line that names a value which is not given is left out; see criteria.rs.
SELECT d.id, CAST(LENGTH(d.payload) + LENGTH(d.reason) + coalesce(LENGTH(d.headers), 0) AS SIGNED) AS bytes, d.token
FROM {dead_letter} d FORCE INDEX (PRIMARY)
{criteria}
ORDER BY d.id
LIMIT :limit
FOR UPDATE SKIP LOCKED /* :skips_locked */
FOR UPDATE /* :waits_for_locked */
