-- Transactions that have been open for long, the oldest first, in whichever database: what is deleted stays for the sake of all of
-- them.
-- ?: for how many seconds. Reads the list of transactions, which needs the right PROCESS.
SELECT CAST(t.trx_mysql_thread_id AS SIGNED)                       AS id,
       CAST(coalesce(p.user, '') AS CHAR)                          AS who,
       CAST(coalesce(p.host, '') AS CHAR)                          AS client,
       CAST(coalesce(p.db, '') AS CHAR)                            AS db,
       CAST(coalesce(p.command, '') AS CHAR)                       AS state,
       CAST(timestampdiff(SECOND, t.trx_started, now()) AS SIGNED) AS open_s,
       CAST(t.trx_started AS CHAR)                                 AS since
FROM information_schema.innodb_trx t
LEFT JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
WHERE timestampdiff(SECOND, t.trx_started, now()) >= ? AND t.trx_mysql_thread_id <> connection_id()
ORDER BY t.trx_started
LIMIT 1000
