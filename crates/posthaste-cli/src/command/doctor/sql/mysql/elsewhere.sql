-- Outboxes on this server, whatever their prefix: by a column that no other table has. Those of this database first.
-- Reads the catalog alone, as far as this user may see it.
SELECT CAST(table_schema AS CHAR) AS db, CAST(table_name AS CHAR) AS name
FROM information_schema.columns
WHERE column_name = 'least_library' AND table_name LIKE '%meta'
ORDER BY table_schema <> coalesce(DATABASE(), ''), table_schema, table_name
LIMIT 3
