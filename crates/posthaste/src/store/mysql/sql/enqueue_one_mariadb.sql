-- Writes a message, whose id is returned, and says of it that it has no seq yet: in one round trip.
-- ? partition, ? type, ? key, ? headers, ? payload, ? partition; texts as bytes, so that it does not matter which character
-- set the caller's session is set to
-- Writes: incoming, pending. Locks: none but the new rows. On the caller's connection, in the caller's transaction.
-- Differs from the one for MySQL, which has no blocks outside procedures, in that it is one statement.
BEGIN NOT ATOMIC
    INSERT INTO {incoming} (created_at, partition_id, payload_type, `key`, headers, payload)
    VALUES ({now}, ?, ?, CONVERT(? USING utf8mb4), CONVERT(? USING utf8mb4), ?)
    RETURNING id;
    INSERT INTO {pending} (id, last_id, partitions)
    VALUES (LAST_INSERT_ID(), LAST_INSERT_ID(), concat(_utf8mb4'[', ?, _utf8mb4']'));
END
