-- Removes messages of segments that are settled.
-- ? an array of ids
-- Writes: incoming. Locks: these rows alone. A DELETE with IN would scan, and wait for open producers.
-- Index: incoming by its primary key, a probe for each id.
-- By the table's whole name: an alias to delete from is looked for in the session's database, and there may be none.
DELETE {incoming} FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) x
STRAIGHT_JOIN {incoming} FORCE INDEX (PRIMARY) ON {incoming}.id = x.id
