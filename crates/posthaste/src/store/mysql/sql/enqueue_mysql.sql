-- Writes messages; their order is the order of their ids.
-- {rows} is a row for each message: tag, partition, type, key, headers, payload.
-- Writes: incoming. Locks: none but the new rows. On the caller's connection, in the caller's transaction.
-- Differs from the one for MariaDB in that MySQL returns only the first id: of more messages than one, the others are found
-- by the tag.
INSERT INTO {incoming} (tag, created_at, partition_id, payload_type, `key`, headers, payload)
VALUES {rows}
