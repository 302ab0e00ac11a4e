-- Says of new messages that they have no seq yet, in the transaction that wrote them.
-- {rows} is for each run of messages its first id, its last, and the array of the partitions: numbers of ours.
-- Writes: pending. Locks: none but the new rows.
-- Differs from PostgreSQL, which has no such table, in that nothing else tells a tick which messages became visible.
INSERT INTO {pending} (id, last_id, partitions) VALUES {rows}
