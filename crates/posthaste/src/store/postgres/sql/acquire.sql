-- Takes a partition's lease and reads its first batch, if it is free, its queue is not paused, and something is behind its cursor.
-- $1 reader, $2 partition, $3 owner, $4 lease in ms, $5 most messages, $6 the last epoch that the owner called its handler
-- for: a link of its own that is another one was only a reply that got lost, and no try; $7 whether to take the row of the
-- partition too, which whoever handles in a transaction keeps locked meanwhile: nobody takes over from a handler that is
-- slow but alive
-- Writes: cursor, one link; nothing if there is nothing to take. May be lost in a crash: then the lease is taken again.
-- Locks: the link it builds on (KEY SHARE) and, if asked for, the partition (NO KEY UPDATE, or nothing is taken); only if
-- it appends.
-- Index: cursor and outgoing by their primary keys, newest first; incoming, partition and queue by id. Subqueries instead of joins leave the
-- planner no other way, however small it believes the tables to be.
-- One row without a message says why nothing was taken, or that messages are missing.
WITH tip AS MATERIALIZED (
    SELECT c.epoch, c.processed_seq, c.attempts, c.owner, c.last_error,
           -- A lease that ends further ahead than it is long: the clock jumped back since.
           c.owner IS NULL OR c.owner = $3 OR c.lease_until <= clock_timestamp()
               OR c.lease_until > clock_timestamp() + c.lease_ms * interval '1 ms' AS is_free,
           extract(epoch FROM c.lease_until - clock_timestamp())::float8 AS seconds_left,
           (SELECT q.paused_at IS NOT NULL FROM {partition} p JOIN {queue} q ON q.id = p.queue_id WHERE p.id = $2) AS is_paused
    FROM {cursor} c
    WHERE c.reader = $1 AND c.partition_id = $2
    ORDER BY c.epoch DESC LIMIT 1
), head AS MATERIALIZED (
    SELECT coalesce((SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = $2
                     ORDER BY o.last_seq DESC LIMIT 1), 0) AS seq
), partition AS MATERIALIZED (
    SELECT p.id
    FROM {partition} p, tip, head
    WHERE p.id = $2 AND $7 AND tip.is_free AND NOT tip.is_paused AND tip.processed_seq < head.seq
    FOR NO KEY UPDATE OF p SKIP LOCKED
), locked AS MATERIALIZED (
    SELECT c.epoch
    FROM {cursor} c
    WHERE c.reader = $1 AND c.partition_id = $2 AND c.epoch = (
        SELECT tip.epoch FROM tip, head
        WHERE tip.is_free AND NOT tip.is_paused AND tip.processed_seq < head.seq AND (NOT $7 OR EXISTS (SELECT FROM partition)))
    FOR KEY SHARE
), link AS (
    INSERT INTO {cursor} (reader, partition_id, epoch, processed_seq, attempts, owner, lease_until, lease_ms, last_error)
    SELECT $1, $2, tip.epoch + 1, tip.processed_seq, least(tip.attempts::bigint + CASE WHEN tip.owner = $3 AND tip.epoch <> $6 THEN 0 ELSE 1 END, 2147483647), $3,
           clock_timestamp() + $4 * interval '1 ms', $4, tip.last_error
    FROM tip JOIN locked ON locked.epoch = tip.epoch,
         (SELECT set_config('synchronous_commit', 'off', true) AS setting) s
    WHERE s.setting IS NOT NULL
    ON CONFLICT DO NOTHING
    RETURNING epoch, processed_seq, attempts
), batch AS MATERIALIZED (
    SELECT m.seq, i.id, i.key, i.headers, i.payload_type, i.payload,
           (extract(epoch FROM i.created_at) * 1000000)::bigint AS created_us
    FROM link CROSS JOIN LATERAL (
        SELECT o.last_seq - cardinality(o.ids) + f.skip + u.n AS seq, u.id
        FROM {outgoing} o
        CROSS JOIN LATERAL (
            SELECT greatest(link.processed_seq - (o.last_seq - cardinality(o.ids)), 0)::integer AS skip) f
        CROSS JOIN LATERAL unnest(o.ids[f.skip + 1 : f.skip + $5]) WITH ORDINALITY AS u (id, n)
        WHERE o.partition_id = $2 AND o.last_seq > link.processed_seq
        ORDER BY o.last_seq, u.n
        -- Whoever had the lease died with it: the one message that may have killed it comes alone.
        LIMIT (SELECT CASE WHEN tip.owner IS NULL THEN $5 ELSE 1 END FROM tip)
    ) m LEFT JOIN LATERAL (SELECT * FROM {incoming} i WHERE i.id = m.id LIMIT 1) i ON true
)
SELECT link.epoch, tip.processed_seq, link.attempts, head.seq AS head, tip.owner IS NOT NULL AND NOT tip.is_free AS is_held,
              tip.seconds_left, tip.is_paused, $7 AND NOT EXISTS (SELECT FROM partition) AS is_locked, tip.last_error,
       batch.seq, batch.id, batch.key, batch.headers, batch.payload_type, batch.payload, batch.created_us
FROM tip CROSS JOIN head LEFT JOIN link ON true LEFT JOIN batch ON true
ORDER BY batch.seq
