-- The settings that matter to an outbox, as a session of this role has them.
-- Reads no tables.
SELECT current_setting('server_version')::text                               AS version,
       current_setting('server_version_num')::int4                           AS version_num,
       pg_is_in_recovery()                                                   AS is_standby,
       current_setting('default_transaction_read_only') = 'on'               AS is_read_only,
       current_setting('autovacuum') = 'on'                                  AS has_autovacuum,
       current_setting('track_counts') = 'on'                                AS has_counts,
       current_setting('fsync') = 'on'                                       AS has_fsync,
       current_setting('full_page_writes') = 'on'                            AS has_full_pages,
       current_setting('synchronous_commit') <> 'off'                        AS has_durable_commits
