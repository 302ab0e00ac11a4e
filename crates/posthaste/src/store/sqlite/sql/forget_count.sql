-- Forgets what AUTOINCREMENT has counted to; count_on.sql says it anew. The table has no key, so there may be no row.
-- Writes: sqlite_sequence. Inside a transaction that excludes other writers.
DELETE FROM main.sqlite_sequence WHERE name = {incoming_literal}
