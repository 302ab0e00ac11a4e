-- Writes messages; their order is the order of their ids, which are returned.
-- {rows} is a row for each message: tag, partition, type, key, headers, payload.
-- Writes: incoming. Locks: none but the new rows. On the caller's connection, in the caller's transaction.
-- Differs from the PostgreSQL version in that there are no arrays; and from the one for MySQL in that this can return.
INSERT INTO {incoming} (tag, created_at, partition_id, payload_type, `key`, headers, payload)
VALUES {rows}
RETURNING id
