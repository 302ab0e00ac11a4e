-- Prepared transactions of this database that nobody has ended for long.
-- $1: for how many seconds. Reads pg_prepared_xacts.
SELECT gid, owner::text, extract(epoch FROM now() - prepared)::float8 AS open_s
FROM pg_prepared_xacts
WHERE database = current_database() AND prepared < now() - make_interval(secs => $1)
ORDER BY prepared
LIMIT 1000
