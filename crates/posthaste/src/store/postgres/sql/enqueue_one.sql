-- Writes a message: what enqueue.sql does for many, at two thirds of its cost for one.
-- $1 partition, $2 payload type, $3 key, $4 headers, $5 payload
-- Writes: incoming. Locks: none but the new row. On the caller's connection, in the caller's transaction.
INSERT INTO {incoming} (partition_id, payload_type, key, headers, payload)
VALUES ($1, $2, $3, $4, $5)
RETURNING id, stamp::text::bigint
