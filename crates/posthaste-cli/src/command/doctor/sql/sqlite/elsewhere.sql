-- The prefixes of outboxes in this file: by a column that no other table has.
-- Reads the schema alone.
SELECT substr(t.name, 1, length(t.name) - 4)
FROM sqlite_schema t
JOIN pragma_table_info(t.name) c ON c.name = 'least_library'
WHERE t.type = 'table' AND substr(t.name, -4) = 'meta'
ORDER BY t.name
LIMIT 3
