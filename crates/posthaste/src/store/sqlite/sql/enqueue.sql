-- Writes messages; their order in the array is the order of their ids.
-- ?1 an array of [partition_id, payload_type, key, headers, where its payload begins, how long it is], ?2 all payloads, one
-- behind the other (of nothing at all, no part can be taken: that is null): so one statement writes any number of messages, and is prepared once.
-- Writes: incoming. Locks: the database against other writers, until the caller's transaction ends. On the caller's connection.
-- Differs from the PostgreSQL version in that there are no arrays to unnest.
INSERT INTO {incoming} (partition_id, payload_type, key, headers, payload)
SELECT m.value ->> 0, m.value ->> 1, m.value ->> 2, m.value ->> 3, coalesce(substr(?2, m.value ->> 4, m.value ->> 5), x'')
FROM json_each(?1) AS m
ORDER BY m.rowid
RETURNING id
