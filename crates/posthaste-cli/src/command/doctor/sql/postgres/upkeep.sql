-- How the outbox's tables are looked after: what is dead in them, how large they are, what autovacuum is told. Large values are in a
-- table of their own behind each, in pieces of which four fill a page; what is known of it is in the columns that begin with toast.
-- $1: the schema, or null for the first of the search path; $2: the names of the tables. A schema that is given is part of the
-- names that come back: whoever follows the advice may not have it in the search path. Reads the catalog and the statistics;
-- the size takes the lock that a SELECT takes.
SELECT coalesce(quote_ident($1) || '.', '') || quote_ident(c.relname)   AS name,
       -- Where the counts were lost, they do not explain the size, until a vacuum or an analyze has counted anew.
       greatest(s.last_vacuum, s.last_autovacuum, s.last_analyze, s.last_autoanalyze) IS NOT NULL
           OR 2 * coalesce(s.n_tup_ins + s.n_tup_upd, 0) * current_setting('block_size')::int8 >= pg_relation_size(c.oid)
                                                                        AS is_counted,
       coalesce(s.n_live_tup, 0)::int8                                  AS live,
       coalesce(s.n_dead_tup, 0)::int8                                  AS dead,
       extract(epoch FROM now() - greatest(s.last_vacuum, s.last_autovacuum))::float8 AS vacuumed_s,
       pg_relation_size(c.oid)::int8                                    AS bytes,
       coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0)::int8  AS toast_bytes,
       coalesce(toast.n_live_tup, 0)::int8                              AS toast_live,
       greatest(toast.last_vacuum, toast.last_autovacuum) IS NOT NULL
           OR 2 * coalesce(toast.n_tup_ins, 0) * current_setting('block_size')::int8 / 4
              >= coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0) AS toast_is_counted,
       current_setting('block_size')::int8                              AS page,
       coalesce(o.enabled, true)                                        AS is_enabled,
       coalesce(o.scale_factor, current_setting('autovacuum_vacuum_scale_factor')::float8) AS scale_factor,
       coalesce(o.threshold, current_setting('autovacuum_vacuum_threshold')::int8)         AS threshold
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
LEFT JOIN pg_stat_all_tables toast ON toast.relid = c.reltoastrelid
CROSS JOIN LATERAL (
    SELECT bool_and(option_value::boolean) FILTER (WHERE option_name = 'autovacuum_enabled')     AS enabled,
           max(option_value::float8) FILTER (WHERE option_name = 'autovacuum_vacuum_scale_factor') AS scale_factor,
           max(option_value::int8) FILTER (WHERE option_name = 'autovacuum_vacuum_threshold')    AS threshold
    FROM pg_options_to_table(c.reloptions)
) o
WHERE n.nspname = coalesce($1, current_schema()) AND c.relname = ANY ($2) AND c.relkind = 'r'
ORDER BY c.relname
