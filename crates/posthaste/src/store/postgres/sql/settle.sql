-- Moves a partition's cursor, writes dead letters, and either renews the lease and reads the next batch, or lets it go.
-- $1 reader, $2 partition, $3 owner, $4 epoch, $5 processed_seq, $6 lease in ms, $7 most messages (0: let go),
-- $8 attempts and $9 last error if it lets go, $10-$13 dead letters: ids, seqs, reasons, attempts, $14 queue, $15 number,
-- $16 whether a crash may lose it
-- Writes: cursor, dead_letter; nothing if the lease was taken over. In leased mode it may be lost in a crash: then
-- messages come again. In a handler's transaction, or beside one, the role's own setting decides.
-- Locks: the link it builds on (KEY SHARE).
-- Index: cursor and outgoing by their primary keys, newest first; incoming by id. Subqueries instead of joins leave the
-- planner no other way, however small it believes the tables to be.
-- No row: the lease is somebody else's. One row without a message: it was let go, or messages are missing.
WITH tip AS MATERIALIZED (
    SELECT c.epoch, c.processed_seq, c.owner
    FROM {cursor} c
    WHERE c.reader = $1 AND c.partition_id = $2
    ORDER BY c.epoch DESC LIMIT 1
), head AS MATERIALIZED (
    SELECT coalesce((SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = $2
                     ORDER BY o.last_seq DESC LIMIT 1), 0) AS seq
), locked AS MATERIALIZED (
    SELECT c.epoch
    FROM {cursor} c
    WHERE c.reader = $1 AND c.partition_id = $2 AND c.epoch = (
        SELECT tip.epoch FROM tip, head
        WHERE tip.epoch = $4 AND tip.owner = $3 AND $5 BETWEEN tip.processed_seq AND head.seq)
    FOR KEY SHARE
), next AS MATERIALIZED (
    SELECT $7 > 0 AND head.seq > $5 AS goes_on, CASE WHEN $16 THEN set_config('synchronous_commit', 'off', true) END AS setting
    FROM head, locked
), link AS (
    INSERT INTO {cursor} (reader, partition_id, epoch, processed_seq, attempts, owner, lease_until, lease_ms, last_error)
    SELECT $1, $2, $4 + 1, $5,
           CASE WHEN next.goes_on THEN 1 ELSE $8 END,
           CASE WHEN next.goes_on THEN $3 END,
           CASE WHEN next.goes_on THEN clock_timestamp() + $6 * interval '1 ms' END,
           CASE WHEN next.goes_on THEN $6 END,
           CASE WHEN next.goes_on THEN NULL ELSE $9 END
    FROM next
    ON CONFLICT DO NOTHING
    RETURNING epoch, processed_seq, attempts, owner
), buried AS (
    INSERT INTO {dead_letter} (id, partition_id, seq, queue, partition, payload_type, key, headers, payload, created_at,
                               attempts, reason)
    SELECT i.id, $2, d.seq, $14, $15, i.payload_type, i.key, i.headers, i.payload, i.created_at, d.attempts, d.reason
    FROM link CROSS JOIN unnest($10::bigint[], $11::bigint[], $12::text[], $13::integer[]) AS d (id, seq, reason, attempts)
    CROSS JOIN LATERAL (SELECT * FROM {incoming} i WHERE i.id = d.id LIMIT 1) i
), batch AS MATERIALIZED (
    SELECT m.seq, i.id, i.key, i.headers, i.payload_type, i.payload,
           (extract(epoch FROM i.created_at) * 1000000)::bigint AS created_us
    FROM link CROSS JOIN LATERAL (
        SELECT o.last_seq - cardinality(o.ids) + f.skip + u.n AS seq, u.id
        FROM {outgoing} o
        CROSS JOIN LATERAL (
            SELECT greatest(link.processed_seq - (o.last_seq - cardinality(o.ids)), 0)::integer AS skip) f
        CROSS JOIN LATERAL unnest(o.ids[f.skip + 1 : f.skip + $7]) WITH ORDINALITY AS u (id, n)
        WHERE o.partition_id = $2 AND o.last_seq > link.processed_seq AND link.owner IS NOT NULL
        ORDER BY o.last_seq, u.n
        LIMIT $7
    ) m LEFT JOIN LATERAL (SELECT * FROM {incoming} i WHERE i.id = m.id LIMIT 1) i ON true
)
SELECT link.epoch, link.processed_seq, link.attempts, head.seq AS head, link.owner IS NOT NULL AS goes_on,
       batch.seq, batch.id, batch.key, batch.headers, batch.payload_type, batch.payload, batch.created_us
FROM link CROSS JOIN head LEFT JOIN batch ON true
ORDER BY batch.seq
