-- Removes ticks.
-- ? an array of ids
-- Writes: tick. Locks: these links. Index: its primary key, a probe for each.
DELETE t FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) x STRAIGHT_JOIN {tick} t FORCE INDEX (PRIMARY) ON t.id = x.id
