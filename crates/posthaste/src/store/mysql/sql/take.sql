-- The messages that have no seq yet, as they were at one moment: a read that locked would not be a snapshot, and a later
-- message could overtake an earlier one while it runs.
-- {most} is a number of ours: of runs.
-- Reads: pending by its primary key, from the first.
SELECT p.id, p.partitions FROM {pending} p ORDER BY p.id LIMIT {most}
