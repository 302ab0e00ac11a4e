-- The tables of a database, and how they are stored. Only those are shown that this user has any right to.
-- ?: the database. Reads the catalog alone.
SELECT CAST(table_name AS CHAR) AS name, CAST(coalesce(engine, '') AS CHAR) AS engine
FROM information_schema.tables
WHERE table_schema = ? AND table_type = 'BASE TABLE'
