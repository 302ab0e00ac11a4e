-- Moves the cursors of partitions, writes dead letters, and either renews the leases and reads the next batches, or lets them go.
-- $1 reader, $2 whether a crash may lose it. Then for each: $3 partition, in ascending order, $4 owner, $5 epoch, $6 processed_seq,
-- $7 lease in ms, $8 most messages (0: let go), $9 attempts, $10 last error and $11 back-off in ms, if any, if it lets go; and the
-- dead letters: $12 partitions, $13 ids, $14 seqs, $15 reasons, $16 attempts, $17 queues, $18 numbers of the partitions
-- Writes: cursor, dead_letter; nothing where the lease was taken over. In leased mode it may be lost in a crash: then
-- messages come again. In a handler's transaction, or beside one, the role's own setting decides.
-- Locks: the links it builds on (KEY SHARE). Everybody appends in the order of the partitions, so that nobody waits in a circle.
-- Index: cursor and outgoing by their primary keys, newest first; incoming by id. Subqueries instead of joins leave the
-- planner no other way, however small it believes the tables to be; OFFSET keeps them apart.
-- For each partition a row says what became of it, or there is none: then the lease is somebody else's. Then come the places of
-- the messages, then the messages, in no order.
WITH tip AS MATERIALIZED (
    SELECT a.*, h.head, a.most > 0 AND h.head > a.processed_seq AS goes_on
    FROM unnest($3::integer[], $4::uuid[], $5::bigint[], $6::bigint[], $7::bigint[], $8::integer[], $9::integer[], $10::text[],
                $11::bigint[])
        AS a (partition_id, owner, epoch, processed_seq, lease_ms, most, attempts, last_error, backoff_ms)
    CROSS JOIN LATERAL (
        SELECT c.epoch, c.processed_seq, c.owner
        FROM {cursor} c
        WHERE c.reader = $1 AND c.partition_id = a.partition_id
        ORDER BY c.epoch DESC LIMIT 1
    ) c
    CROSS JOIN LATERAL (
        SELECT coalesce((SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = a.partition_id
                         ORDER BY o.last_seq DESC LIMIT 1), 0) AS head
        OFFSET 0
    ) h
    WHERE c.epoch = a.epoch AND c.owner = a.owner AND a.processed_seq BETWEEN c.processed_seq AND h.head
), locked AS MATERIALIZED (
    SELECT t.*
    FROM tip t
    CROSS JOIN LATERAL (
        SELECT FROM {cursor} c
        WHERE c.reader = $1 AND c.partition_id = t.partition_id AND c.epoch = t.epoch
        FOR KEY SHARE
    ) c
), commit AS MATERIALIZED (
    SELECT CASE WHEN $2 THEN set_config('synchronous_commit', 'off', true) ELSE '' END AS setting,
           -- One of many does not keep the others waiting: then each asks alone.
           CASE WHEN cardinality($3::integer[]) > 1 THEN set_config('lock_timeout', '1s', true) ELSE '' END AS patience
    WHERE EXISTS (SELECT FROM locked)
), link AS (
    INSERT INTO {cursor} (reader, partition_id, epoch, processed_seq, attempts, owner, lease_until, lease_ms, last_error)
    SELECT $1, l.partition_id, l.epoch + 1, l.processed_seq,
           CASE WHEN l.goes_on THEN 1 ELSE l.attempts END,
           CASE WHEN l.goes_on THEN l.owner END,
           clock_timestamp() + CASE WHEN l.goes_on THEN l.lease_ms ELSE l.backoff_ms END * interval '1 ms',
           CASE WHEN l.goes_on THEN l.lease_ms ELSE l.backoff_ms END,
           CASE WHEN l.goes_on THEN NULL ELSE l.last_error END
    FROM locked l, commit
    WHERE commit.setting IS NOT NULL AND commit.patience IS NOT NULL
    ON CONFLICT DO NOTHING
    RETURNING partition_id, epoch, processed_seq, attempts, owner
), buried AS (
    INSERT INTO {dead_letter} (id, partition_id, seq, queue, partition, payload_type, key, headers, payload, created_at,
                               attempts, reason)
    SELECT i.id, k.partition_id, d.seq, d.queue, d.number, i.payload_type, i.key, i.headers, i.payload, i.created_at, d.attempts, d.reason
    FROM link k
    JOIN unnest($12::integer[], $13::bigint[], $14::bigint[], $15::text[], $16::integer[], $17::text[], $18::integer[])
        AS d (partition_id, id, seq, reason, attempts, queue, number) ON d.partition_id = k.partition_id
    CROSS JOIN LATERAL (SELECT * FROM {incoming} i WHERE i.id = d.id LIMIT 1) i
), batch AS MATERIALIZED (
    SELECT k.partition_id, k.processed_seq, l.most
    FROM link k JOIN locked l ON l.partition_id = k.partition_id
    WHERE k.owner IS NOT NULL
), place AS MATERIALIZED (
{places}
)
SELECT k.partition_id, NULL::bigint AS first_seq, NULL::bigint[] AS ids,
       NULL::bigint AS id, NULL::text AS key, NULL::text AS headers, NULL::text AS payload_type, NULL::bytea AS payload, NULL::timestamptz AS created_us,
       k.epoch, k.processed_seq, k.attempts, l.head, k.owner IS NOT NULL AS goes_on
FROM link k JOIN locked l ON l.partition_id = k.partition_id
UNION ALL
SELECT p.partition_id, p.first_seq, p.ids, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM place p
UNION ALL
SELECT NULL, NULL, NULL, i.id, i.key, i.headers, i.payload_type, i.payload, i.created_at, NULL, NULL, NULL, NULL, NULL
FROM {incoming} i
WHERE i.id = ANY (ARRAY(SELECT unnest(p.ids) FROM place p))
