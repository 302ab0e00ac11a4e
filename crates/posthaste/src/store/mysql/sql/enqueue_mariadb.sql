-- Writes messages; their order is the order of their ids, which are returned.
-- For each: ? partition, ? type, ? key, ? headers, ? payload; texts as bytes, so that it does not matter which
-- character set the caller's session is set to
-- Writes: incoming. Locks: none but the new rows. On the caller's connection, in the caller's transaction.
-- Differs from the PostgreSQL version in that there are no arrays. Differs from the one for MySQL in that this can return, and
-- in that it has rows of parameters: to insert from a list, MariaDB locks the table's counter of ids until the statement ends.
INSERT INTO {incoming} (created_at, partition_id, payload_type, `key`, headers, payload)
VALUES {rows}
RETURNING id
