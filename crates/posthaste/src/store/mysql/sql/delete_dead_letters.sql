-- Deletes dead letters that are locked.
-- :ids, :array, the same as one text
-- Writes: dead_letter. Index: dead_letter by its primary key.
-- Differs from the PostgreSQL version in that it joins: a list of ids alone would make it scan a small table, and wait for rows that others
-- have locked. The table goes by its whole name: an alias would be looked for in the caller's database.
-- MariaDB, which alone reads the first line, does not let the sessions of careful people delete what is joined with a list.
/*M! SET STATEMENT sql_safe_updates = 0 FOR */
DELETE {dead_letter} FROM JSON_TABLE(:array, '$[*]' COLUMNS (id BIGINT PATH '$')) x
STRAIGHT_JOIN {dead_letter} FORCE INDEX (PRIMARY) ON {dead_letter}.id = x.id
WHERE {dead_letter}.id IN (:ids)
