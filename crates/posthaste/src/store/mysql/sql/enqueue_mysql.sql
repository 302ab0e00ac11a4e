-- Writes messages; their order is the order of their ids.
-- ? a tag; ? all payloads, one behind the other; ? an array of [partition, type, key, headers, where the payload begins, its
-- length], as bytes, so that it does not matter which character set the caller's session is set to
-- Writes: incoming. Locks: none but the new rows. On the caller's connection, in the caller's transaction.
-- Differs from the one for MariaDB in that MySQL returns only the first id: the others are found by the tag. And in that it has a list
-- instead of rows of parameters, whose texts would stay prepared: its counter of ids is not locked by that.
INSERT INTO {incoming} (tag, created_at, partition_id, payload_type, `key`, headers, payload)
SELECT ?, {now}, x.partition_id, x.payload_type, x.message_key, x.headers, SUBSTRING(?, x.begins, x.size)
FROM JSON_TABLE(CONVERT(? USING utf8mb4), '$[*]' COLUMNS (
    partition_id INT PATH '$[0]', payload_type VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]',
    message_key VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[2]', headers MEDIUMTEXT CHARACTER SET utf8mb4 PATH '$[3]',
    begins BIGINT PATH '$[4]', size BIGINT PATH '$[5]')) x
