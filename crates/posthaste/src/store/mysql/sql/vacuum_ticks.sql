-- Removes ticks.
-- ? an array of ids
-- Writes: tick. Locks: these links. Index: its primary key, a probe for each.
-- By the table's whole name: an alias to delete from is looked for in the session's database, and there may be none.
DELETE {tick} FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) x
STRAIGHT_JOIN {tick} FORCE INDEX (PRIMARY) ON {tick}.id = x.id
