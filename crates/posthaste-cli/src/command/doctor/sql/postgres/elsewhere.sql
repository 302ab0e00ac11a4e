-- Outboxes in this database, whatever their prefix: by a column that no other table has.
-- Reads the catalog alone.
SELECT n.nspname::text AS schema, c.relname::text AS name
FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE a.attname = 'least_library' AND c.relkind = 'r' AND right(c.relname, 4) = 'meta'
ORDER BY n.nspname, c.relname
LIMIT 3
