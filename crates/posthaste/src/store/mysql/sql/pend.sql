-- Says of new messages that they have no seq yet, in the transaction that wrote them.
-- ? an array of [id, partition]
-- Writes: pending. Locks: none but the new rows.
-- Differs from PostgreSQL, which has no such table, in that nothing else tells a tick which messages became visible.
INSERT INTO {pending} (id, partition_id)
SELECT x.id, x.partition_id
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$[0]', partition_id INT PATH '$[1]')) x
