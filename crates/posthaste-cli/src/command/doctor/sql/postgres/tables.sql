-- Which of the outbox's tables are there, what this role may not do with them, and their whole names as SQL has them.
-- $1: the schema, or null for the first of the search path; $2: the names of the tables. Reads the catalog alone.
SELECT c.relname::text                                                       AS name,
       array_to_string(ARRAY(SELECT r FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) r
                             WHERE NOT has_table_privilege(c.oid, r)), ', ') AS lacks,
       quote_ident(n.nspname) || '.' || quote_ident(c.relname)              AS full_name
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = coalesce($1, current_schema()) AND c.relname = ANY ($2) AND c.relkind IN ('r', 'p')
ORDER BY c.relname
