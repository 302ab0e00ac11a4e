-- Sessions with a transaction that has been open for long, the oldest first. Only those of this database: others do not keep our
-- dead rows alive. Vacuum does not either, and standbys have a statement of their own.
-- $1: for how many seconds. Reads pg_stat_activity, where the sessions of others are blank without pg_read_all_stats.
SELECT pid::int4,
       coalesce(usename::text, '')                              AS who,
       coalesce(application_name, '')                           AS application,
       coalesce(host(client_addr), 'a local socket')            AS client,
       coalesce(state, '')                                      AS state,
       extract(epoch FROM now() - xact_start)::float8           AS open_s,
       to_char(xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS since,
       backend_xmin IS NOT NULL OR backend_xid IS NOT NULL      AS pins
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
  AND backend_type NOT IN ('walsender', 'autovacuum worker', 'parallel worker')
  AND xact_start < now() - make_interval(secs => $1)
ORDER BY xact_start
LIMIT 1000
