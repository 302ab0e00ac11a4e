-- Moves a partition's cursor, and either renews the lease and reads the next batch, or lets it go. Two statements, each for itself
-- or in a handler's transaction, in one go.
-- ?1 reader, ?2 partition, ?3 owner, ?4 epoch, ?5 processed_seq, ?6 lease in ms, ?7 whether to go on if there is more,
-- ?8 attempts, ?9 last error and ?11 back-off in ms, if any, if it lets go, ?10 most messages
-- Writes: cursor; nothing if the lease was taken over, and then there is no row. In leased mode a power failure may take it
-- back: then messages come again.
-- Locks: the database against other writers, while the first runs: it reads the link it builds on under that lock.
-- Index: cursor and outgoing by their primary keys, newest first; incoming by id. A segment has at most 256 messages, so none
-- that ends further ahead has any of the batch.
-- A row for the link, and one for each message, in no order; one that should be there and is not has no id.
-- Differs from the PostgreSQL version in that bury.sql writes the dead letters, in the same transaction.
INSERT INTO {cursor} (reader, partition_id, epoch, processed_seq, attempts, owner, lease_until, lease_ms, last_error)
SELECT ?1, ?2, tip.epoch + 1, ?5,
       iif(tip.goes_on, 1, ?8), iif(tip.goes_on, ?3, NULL), {now} + iif(tip.goes_on, ?6, ?11) * 1000,
       iif(tip.goes_on, ?6, ?11), iif(tip.goes_on, NULL, ?9)
FROM (
    SELECT newest.*, ?7 AND newest.head > ?5 AS goes_on
    FROM (
        SELECT c.epoch, c.processed_seq, c.owner,
               coalesce((SELECT o.last_seq FROM {outgoing} AS o WHERE o.partition_id = ?2
                         ORDER BY o.last_seq DESC LIMIT 1), 0) AS head
        FROM {cursor} AS c WHERE c.reader = ?1 AND c.partition_id = ?2
        ORDER BY c.epoch DESC LIMIT 1
    ) AS newest
) AS tip
WHERE tip.epoch = ?4 AND tip.owner = ?3 AND ?5 BETWEEN tip.processed_seq AND tip.head
RETURNING epoch, processed_seq, attempts, owner IS NOT NULL AS goes_on,
          coalesce((SELECT o.last_seq FROM {outgoing} AS o WHERE o.partition_id = ?2 ORDER BY o.last_seq DESC LIMIT 1), 0) AS head;
SELECT o.first_seq + m.key AS seq, i.id, i.key, i.headers, i.payload_type, i.payload, i.created_at AS created_us
FROM (SELECT c.processed_seq FROM {cursor} AS c
      WHERE c.reader = ?1 AND c.partition_id = ?2 AND c.epoch = ?4 + 1 AND c.owner = ?3) AS link
CROSS JOIN {outgoing} AS o ON o.partition_id = ?2 AND o.last_seq > link.processed_seq AND o.last_seq < link.processed_seq + ?10 + 256
CROSS JOIN json_each(o.ids) AS m
LEFT JOIN {incoming} AS i ON i.id = m.value
WHERE o.first_seq + m.key BETWEEN link.processed_seq + 1 AND link.processed_seq + ?10
