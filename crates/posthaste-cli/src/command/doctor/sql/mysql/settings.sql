-- The settings that matter to an outbox, as new sessions get them. Not every server has each of them.
-- Reads no tables.
SHOW GLOBAL VARIABLES WHERE Variable_name IN (
    'version', 'read_only', 'super_read_only', 'innodb_read_only', 'transaction_isolation', 'tx_isolation',
    'innodb_autoinc_lock_mode', 'log_bin', 'binlog_format', 'sync_binlog', 'innodb_flush_log_at_trx_commit',
    'max_allowed_packet', 'sql_mode'
)
