-- Removes a chunk of what every reader has passed: segments with their messages, old links of cursors, old ticks. Oldest
-- first, so that what is left of a chain never has a hole. The newest link of a chain and the newest segment of a partition
-- stay; of a newest segment that is settled, the messages go.
-- $1 key of the advisory lock, $2 reader, $3 partitions, $4 first and $5 end of the epochs, $6 seqs after which and $7 up to
-- which, $8 first tick, $9 most ticks
-- Writes: cursor, outgoing, incoming, tick. Durable: who remembers what is gone may rely on it.
-- Locks: what it removes, or fails at once if somebody builds on any of it. The advisory lock only saves work.
-- Index: all by their primary keys, or by their places. How far a partition is settled is read by this statement itself.
WITH gate AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock($1) AS mine
), durable AS MATERIALIZED (
    SELECT CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
                THEN set_config('synchronous_commit', 'on', true) ELSE '' END AS setting
    FROM gate WHERE gate.mine
), part AS MATERIALIZED (
    SELECT p.id, p.first_epoch, least(p.end_epoch, tip.epoch) AS end_epoch, p.after_seq,
           least(p.to_seq, tip.processed_seq) AS to_seq, head.last_seq AS head
    FROM durable
    CROSS JOIN unnest($3::integer[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
        AS p (id, first_epoch, end_epoch, after_seq, to_seq)
    CROSS JOIN LATERAL (
        SELECT c.epoch, c.processed_seq FROM {cursor} c WHERE c.reader = $2 AND c.partition_id = p.id
        ORDER BY c.epoch DESC LIMIT 1) tip
    LEFT JOIN LATERAL (
        SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = p.id ORDER BY o.last_seq DESC LIMIT 1) head ON true
    WHERE durable.setting IS NOT NULL
),
-- By partition, each from its first row that is left: OFFSET keeps the planner from beginning at the other end.
links AS MATERIALIZED (
    SELECT l.place
    FROM part p CROSS JOIN LATERAL (
        SELECT c.ctid AS place FROM {cursor} c
        WHERE c.reader = $2 AND c.partition_id = p.id AND c.epoch >= p.first_epoch AND c.epoch < p.end_epoch
        ORDER BY c.epoch OFFSET 0
        FOR UPDATE NOWAIT
    ) l
), segments AS MATERIALIZED (
    SELECT s.place, s.ids
    FROM part p CROSS JOIN LATERAL (
        SELECT o.ctid AS place, o.ids FROM {outgoing} o
        WHERE o.partition_id = p.id AND o.last_seq > p.after_seq AND o.last_seq <= p.to_seq AND o.last_seq < p.head
        ORDER BY o.last_seq OFFSET 0
        FOR UPDATE NOWAIT
    ) s
), ticks AS MATERIALIZED (
    SELECT t.ctid AS place, t.id
    FROM {tick} t
    WHERE t.id >= $8 AND t.id < (SELECT n.id FROM {tick} n ORDER BY n.id DESC LIMIT 1) AND EXISTS (SELECT FROM durable)
    ORDER BY t.id LIMIT $9
    FOR UPDATE NOWAIT
), newest AS MATERIALIZED (
    SELECT n.ids
    FROM part p CROSS JOIN LATERAL (
        SELECT o.ids FROM {outgoing} o WHERE o.partition_id = p.id AND o.last_seq = p.head OFFSET 0
    ) n
    WHERE p.head <= p.to_seq
),
-- What is locked stays where it is, so it is found there; messages are found by their ids. Not by joins, which the planner
-- could begin at the other end.
gone_links AS (
    DELETE FROM {cursor} WHERE ctid = ANY (ARRAY(SELECT place FROM links))
), gone_segments AS (
    DELETE FROM {outgoing} WHERE ctid = ANY (ARRAY(SELECT place FROM segments))
), gone_ticks AS (
    DELETE FROM {tick} WHERE ctid = ANY (ARRAY(SELECT place FROM ticks))
), gone_messages AS (
    DELETE FROM {incoming}
    WHERE id = ANY (ARRAY(SELECT unnest(ids) FROM segments UNION ALL SELECT unnest(ids) FROM newest))
    RETURNING id
)
SELECT gate.mine, (SELECT count(*) FROM gone_messages) AS messages, (SELECT count(*) FROM ticks) AS ticks,
       (SELECT max(id) FROM ticks) AS last_tick,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint AS server
FROM gate
