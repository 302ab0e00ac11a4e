-- Who we are, and whether we may use the schema that the tables are in; no row if it is not there.
-- $1: the schema, or null for the first of the search path. Reads the catalog alone.
SELECT quote_ident(current_user) AS me, quote_ident(n.nspname) AS schema, has_schema_privilege(n.oid, 'USAGE') AS may_enter
FROM pg_namespace n
WHERE n.nspname = coalesce($1, current_schema())
