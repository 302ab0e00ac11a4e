-- Deletes dead letters that are locked.
-- :ids
-- Writes: dead_letter. Index: dead_letter by its primary key.
-- Differs from the PostgreSQL version in that it joins: a list of ids alone would make it scan a small table, and wait for rows that others
-- have locked.
DELETE d FROM JSON_TABLE('[:ids]', '$[*]' COLUMNS (id BIGINT PATH '$')) x
STRAIGHT_JOIN {dead_letter} d FORCE INDEX (PRIMARY) ON d.id = x.id
