-- Transactions that have been open for long, in whichever database: what is deleted stays for the sake of all of them. Those of this
-- database first, and of each the oldest.
-- ?: for how many seconds. Reads the list of transactions, which needs the right PROCESS. There the times are the server machine's,
-- whatever the zone of the session: they are made UTC.
SELECT CAST(t.trx_mysql_thread_id AS SIGNED)                          AS id,
       CAST(coalesce(p.user, '') AS CHAR)                             AS who,
       CAST(coalesce(p.host, '') AS CHAR)                             AS client,
       CAST(coalesce(p.db, '') AS CHAR)                               AS db,
       CAST(coalesce(p.command, '') AS CHAR)                          AS state,
       CAST(timestampdiff(SECOND, t.began, utc_timestamp()) AS SIGNED) AS open_s,
       CAST(date_format(t.began, '%Y-%m-%dT%H:%i:%sZ') AS CHAR)       AS since
FROM (SELECT trx_mysql_thread_id, convert_tz(trx_started, 'SYSTEM', '+00:00') AS began
      FROM information_schema.innodb_trx) t
LEFT JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
WHERE timestampdiff(SECOND, t.began, utc_timestamp()) >= ? AND t.trx_mysql_thread_id <> connection_id()
ORDER BY coalesce(p.db, '') <> coalesce(DATABASE(), ''), t.began
LIMIT 1000
