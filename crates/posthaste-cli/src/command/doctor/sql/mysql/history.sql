-- How many transactions there are whose deleted rows are not removed yet.
-- Reads InnoDB's counters, which needs the right PROCESS.
SELECT CAST(count AS SIGNED) FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'
