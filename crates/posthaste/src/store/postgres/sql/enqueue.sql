-- Writes messages; their order in the arrays is the order of their ids.
-- The stamp is returned as a number: for a type that it does not know, sqlx asks the catalog on each new connection.
-- Writes: incoming. Locks: none but the new rows. On the caller's connection, in the caller's transaction.
INSERT INTO {incoming} (partition_id, payload_type, key, headers, payload)
SELECT m.partition_id, m.payload_type, m.key, m.headers, m.payload
FROM unnest($1::integer[], $2::text[], $3::text[], $4::text[], $5::bytea[])
    WITH ORDINALITY AS m (partition_id, payload_type, key, headers, payload, n)
ORDER BY m.n
RETURNING id, stamp::text::bigint
