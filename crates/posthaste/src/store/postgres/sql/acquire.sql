-- Takes the leases of partitions and reads their first batches: of each that is free, whose queue is not paused, and that has
-- something behind its cursor.
-- $1 reader, $2 whether to take the rows of the partitions too, which whoever handles in a transaction keeps locked meanwhile:
-- nobody takes over from a handler that is slow but alive. Then for each: $3 partition, in ascending order, $4 owner, $5 lease in ms,
-- $6 most messages, $7 the last epoch that the owner called its handler for: a link of its own that is another one was only
-- a reply that got lost, and no try
-- Writes: cursor, a link a partition; nothing if there is nothing to take. May be lost in a crash: then the lease is taken again.
-- Locks: the links it builds on (KEY SHARE) and, if asked for, the partitions (NO KEY UPDATE, or they are not taken); only
-- where it appends. Everybody appends in the order of the partitions, so that nobody waits in a circle.
-- Index: cursor and outgoing by their primary keys, newest first; incoming, partition and queue by id. Subqueries instead of joins leave the
-- planner no other way, however small it believes the tables to be; OFFSET keeps them apart.
-- For each partition a row says what became of it; then come the places of the messages, then the messages, in no order.
WITH tip AS MATERIALIZED (
    SELECT a.partition_id, a.owner AS claimant, a.lease_ms, a.most, a.handled_epoch,
           c.epoch, c.processed_seq, c.attempts, c.owner, c.last_error, c.is_free, c.seconds_left, h.head, h.is_paused,
           c.is_free AND NOT h.is_paused AND c.processed_seq < h.head AS is_for_us
    FROM unnest($3::integer[], $4::uuid[], $5::bigint[], $6::integer[], $7::bigint[])
        AS a (partition_id, owner, lease_ms, most, handled_epoch)
    CROSS JOIN LATERAL (
        SELECT c.epoch, c.processed_seq, c.attempts, c.owner, c.last_error,
               -- Without an owner it is the back-off of the first message. One that ends further ahead than it is long: the clock
               -- jumped back since.
               (c.lease_until IS NULL OR c.owner = a.owner OR c.lease_until <= clock_timestamp()
                   OR c.lease_until > clock_timestamp() + c.lease_ms * interval '1 ms') IS TRUE AS is_free,
               extract(epoch FROM c.lease_until - clock_timestamp())::float8 AS seconds_left
        FROM {cursor} c
        WHERE c.reader = $1 AND c.partition_id = a.partition_id
        ORDER BY c.epoch DESC LIMIT 1
    ) c
    CROSS JOIN LATERAL (
        SELECT coalesce((SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = a.partition_id
                         ORDER BY o.last_seq DESC LIMIT 1), 0) AS head,
               (SELECT q.paused_at IS NOT NULL FROM {partition} p JOIN {queue} q ON q.id = p.queue_id
                WHERE p.id = a.partition_id) AS is_paused
        OFFSET 0
    ) h
), partition AS MATERIALIZED (
    SELECT p.id
    FROM {partition} p
    WHERE p.id = ANY (ARRAY(SELECT t.partition_id FROM tip t WHERE $2 AND t.is_for_us))
    FOR NO KEY UPDATE SKIP LOCKED
), locked AS MATERIALIZED (
    SELECT t.*
    FROM tip t
    CROSS JOIN LATERAL (
        SELECT FROM {cursor} c
        WHERE c.reader = $1 AND c.partition_id = t.partition_id AND c.epoch = t.epoch
        FOR KEY SHARE
    ) c
    WHERE t.is_for_us AND (NOT $2 OR t.partition_id = ANY (ARRAY(SELECT id FROM partition)))
), commit AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true) AS setting,
           -- One of many does not keep the others waiting: then each asks alone.
           CASE WHEN cardinality($3::integer[]) > 1 THEN set_config('lock_timeout', '1s', true) ELSE '' END AS patience
    WHERE EXISTS (SELECT FROM locked)
), link AS (
    INSERT INTO {cursor} (reader, partition_id, epoch, processed_seq, attempts, owner, lease_until, lease_ms, last_error)
    SELECT $1, l.partition_id, l.epoch + 1, l.processed_seq,
           least(l.attempts::bigint + CASE WHEN l.owner = l.claimant AND l.epoch <> l.handled_epoch THEN 0 ELSE 1 END, 2147483647),
           l.claimant, clock_timestamp() + l.lease_ms * interval '1 ms', l.lease_ms, l.last_error
    FROM locked l, commit
    WHERE commit.setting IS NOT NULL AND commit.patience IS NOT NULL
    ON CONFLICT DO NOTHING
    RETURNING partition_id, epoch, attempts
), batch AS MATERIALIZED (
    SELECT k.partition_id, l.processed_seq,
           -- Whoever had the lease died with it: the one message that may have killed it comes alone.
           CASE WHEN l.owner IS NULL THEN l.most ELSE 1 END AS most
    FROM link k JOIN locked l ON l.partition_id = k.partition_id
), place AS MATERIALIZED (
{places}
)
SELECT t.partition_id, NULL::bigint AS first_seq, NULL::bigint[] AS ids,
       NULL::bigint AS id, NULL::text AS key, NULL::text AS headers, NULL::text AS payload_type, NULL::bytea AS payload, NULL::timestamptz AS created_us,
       k.epoch, t.processed_seq, k.attempts, t.head, NOT t.is_free AS is_held, t.seconds_left,
       t.is_paused, $2 AND NOT t.partition_id = ANY (ARRAY(SELECT id FROM partition)) AS is_locked, t.last_error
FROM tip t LEFT JOIN link k ON k.partition_id = t.partition_id
UNION ALL
SELECT p.partition_id, p.first_seq, p.ids, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM place p
UNION ALL
SELECT NULL, NULL, NULL, i.id, i.key, i.headers, i.payload_type, i.payload, i.created_at, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM {incoming} i
WHERE i.id = ANY (ARRAY(SELECT unnest(p.ids) FROM place p))
