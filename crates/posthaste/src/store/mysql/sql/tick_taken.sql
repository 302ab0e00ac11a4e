-- Removes what a tick took.
-- ? an array of ids
-- Writes: pending. Locks: these rows alone. A DELETE with IN would scan, and wait for open producers.
-- Index: pending by its primary key, a probe for each id.
DELETE p FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) x STRAIGHT_JOIN {pending} p FORCE INDEX (PRIMARY) ON p.id = x.id
