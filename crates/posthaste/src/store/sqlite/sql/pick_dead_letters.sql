-- Finds dead letters.
-- :limit; and dead_letter_criteria.sql
-- Reads: dead_letter by id, (queue, status, id) or (status, id), as the planner finds best for what is asked.
-- Differs from the PostgreSQL version in that no row need be locked: whoever is to write has the database for itself.
-- A line that names a value which is not given is left out; see criteria.rs.
SELECT d.id, length(d.payload) + length(CAST(d.reason AS BLOB)) + coalesce(length(CAST(d.headers AS BLOB)), 0) AS bytes, d.token
FROM {dead_letter} AS d
{criteria}
ORDER BY d.id
LIMIT :limit
