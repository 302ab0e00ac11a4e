-- Removes what a tick took.
-- ? an array of ids of runs
-- Writes: pending. Locks: these rows alone. A DELETE with IN would scan, and wait for open producers.
-- Index: pending by its primary key, a probe for each id.
-- By the table's whole name: an alias to delete from is looked for in the session's database, and there may be none.
DELETE {pending} FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) x
STRAIGHT_JOIN {pending} FORCE INDEX (PRIMARY) ON {pending}.id = x.id
