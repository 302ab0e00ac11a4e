-- Writes dead letters: messages as they are, and why they were rejected.
-- ?1 partition, ?2 queue, ?3 number of the partition, ?4 an array of [id, seq, reason, attempts]
-- Writes: dead_letter. In the transaction of settle.sql.
-- Index: incoming by id.
INSERT INTO {dead_letter} (id, partition_id, seq, queue, partition, payload_type, key, headers, payload, created_at, attempts, reason)
SELECT i.id, ?1, d.value ->> 1, ?2, ?3, i.payload_type, i.key, i.headers, i.payload, i.created_at, d.value ->> 3, d.value ->> 2
FROM json_each(?4) AS d CROSS JOIN {incoming} AS i ON i.id = d.value ->> 0
