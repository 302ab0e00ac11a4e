-- Moves a partition's cursor, and either renews the lease or lets it go.
-- ?1 reader, ?2 partition, ?3 owner, ?4 epoch, ?5 processed_seq, ?6 lease in ms, ?7 whether to go on if there is more,
-- ?8 attempts and ?9 last error if it lets go
-- Writes: cursor; nothing if the lease was taken over, and then there is no row. In leased mode a power failure may take it
-- back: then messages come again.
-- Locks: the database against other writers, while it runs: it reads the link it builds on under that lock.
-- Index: cursor and outgoing by their primary keys, newest first.
-- Differs from the PostgreSQL version in that bury.sql writes the dead letters, in the same transaction, and read.sql reads the
-- next batch.
INSERT INTO {cursor} (reader, partition_id, epoch, processed_seq, attempts, owner, lease_until, lease_ms, last_error)
SELECT ?1, ?2, tip.epoch + 1, ?5,
       iif(tip.goes_on, 1, ?8), iif(tip.goes_on, ?3, NULL), iif(tip.goes_on, {now} + ?6 * 1000, NULL),
       iif(tip.goes_on, ?6, NULL), iif(tip.goes_on, NULL, ?9)
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
          coalesce((SELECT o.last_seq FROM {outgoing} AS o WHERE o.partition_id = ?2 ORDER BY o.last_seq DESC LIMIT 1), 0) AS head
