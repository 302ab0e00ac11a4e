-- Writes a message. Its id is what the server says it inserted last on this connection.
-- ? partition, ? type, ? key, ? headers, ? payload; texts as bytes, so that it does not matter which character set the
-- caller's session is set to
-- Writes: incoming. Locks: none but the new row. On the caller's connection, in the caller's transaction.
INSERT INTO {incoming} (created_at, partition_id, payload_type, `key`, headers, payload)
VALUES ({now}, ?, ?, CONVERT(? USING utf8mb4), CONVERT(? USING utf8mb4), ?)
