-- Finds dead letters.
-- :limit; and dead_letter_criteria.sql
-- Reads: dead_letter by id, (queue, status, id) or (status, id), as the optimiser finds best for what is asked.
-- Differs from the PostgreSQL version in that it locks nothing: a locking read locks all that it looks at, and gaps, which would make
-- those wait who bury messages. lock_dead_letters.sql locks what was found, and looks at it again.
-- A line that names a value which is not given is left out; see criteria.rs.
SELECT d.id, CAST(LENGTH(d.payload) + LENGTH(d.reason) + coalesce(LENGTH(d.headers), 0) AS SIGNED) AS bytes, d.token
FROM {dead_letter} d
{criteria}
ORDER BY d.id
LIMIT :limit
