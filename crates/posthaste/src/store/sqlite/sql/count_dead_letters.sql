-- How many dead letters there are.
-- dead_letter_criteria.sql
-- Reads: dead_letter, or one of its indexes, as far as the criteria reach.
-- A line that names a value which is not given is left out; see criteria.rs.
SELECT count(*) FROM {dead_letter} AS d
{criteria}
