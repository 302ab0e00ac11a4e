-- How many sessions of this database we see nothing of but that they are there.
-- Reads pg_stat_activity.
SELECT count(*) AS hidden, quote_ident(current_user) AS me
FROM pg_stat_activity
WHERE datname = current_database() AND usesysid IS NOT NULL
  AND NOT pg_has_role(usesysid, 'USAGE') AND NOT pg_has_role('pg_read_all_stats', 'USAGE')
