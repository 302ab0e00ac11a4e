-- How many ids a session takes at once, and the table as SQL has it; with the schema, if it is given.
-- $1: the schema, or null for the first of the search path; $2: the table of messages. Reads the catalog alone.
SELECT s.seqcache AS cache, coalesce(quote_ident($1) || '.', '') || quote_ident(c.relname) AS name
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'id'
JOIN pg_depend d ON d.refobjid = c.oid AND d.refobjsubid = a.attnum AND d.deptype = 'i'
JOIN pg_sequence s ON s.seqrelid = d.objid
WHERE n.nspname = coalesce($1, current_schema()) AND c.relname = $2
