-- Removes a chunk of what every reader has passed: segments with their messages, old links of cursors, old ticks. Oldest
-- first, so that what is left of a chain never has a hole. The newest link of a chain and the newest segment of a partition
-- stay; of a newest segment that is settled, the messages go.
-- $1 key of the advisory lock, $2 reader, $3 partitions, $4 first and $5 end of the epochs, $6 seqs after which and $7 up to
-- which, $8 first tick, $9 most ticks
-- Writes: cursor, outgoing, incoming, tick. Durable: who remembers what is gone may rely on it.
-- Locks: what it removes, or fails at once if somebody builds on any of it. The advisory lock only saves work.
-- Index: all by their primary keys. How far a partition is settled is read by this statement itself.
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
    SELECT l.partition_id, l.epoch
    FROM part p CROSS JOIN LATERAL (
        SELECT c.partition_id, c.epoch FROM {cursor} c
        WHERE c.reader = $2 AND c.partition_id = p.id AND c.epoch >= p.first_epoch AND c.epoch < p.end_epoch
        ORDER BY c.epoch OFFSET 0
        FOR UPDATE NOWAIT
    ) l
), segments AS MATERIALIZED (
    SELECT s.partition_id, s.last_seq, s.ids
    FROM part p CROSS JOIN LATERAL (
        SELECT o.partition_id, o.last_seq, o.ids FROM {outgoing} o
        WHERE o.partition_id = p.id AND o.last_seq > p.after_seq AND o.last_seq <= p.to_seq AND o.last_seq < p.head
        ORDER BY o.last_seq OFFSET 0
        FOR UPDATE NOWAIT
    ) s
), ticks AS MATERIALIZED (
    SELECT t.id
    FROM {tick} t, durable
    WHERE t.id >= $8 AND t.id < (SELECT n.id FROM {tick} n ORDER BY n.id DESC LIMIT 1)
    ORDER BY t.id LIMIT $9
    FOR UPDATE OF t NOWAIT
), messages AS MATERIALIZED (
    SELECT unnest(s.ids) AS id FROM segments s
    UNION ALL
    SELECT unnest(o.ids) FROM part p JOIN {outgoing} o ON o.partition_id = p.id AND o.last_seq = p.head
    WHERE p.head <= p.to_seq
), gone_links AS (
    DELETE FROM {cursor} c USING links l
    WHERE c.reader = $2 AND c.partition_id = l.partition_id AND c.epoch = l.epoch
), gone_segments AS (
    DELETE FROM {outgoing} o USING segments s WHERE o.partition_id = s.partition_id AND o.last_seq = s.last_seq
), gone_ticks AS (
    DELETE FROM {tick} t USING ticks g WHERE t.id = g.id
), gone_messages AS (
    DELETE FROM {incoming} i USING messages m WHERE i.id = m.id RETURNING i.id
)
SELECT gate.mine, (SELECT count(*) FROM gone_messages) AS messages, (SELECT count(*) FROM ticks) AS ticks,
       (SELECT max(id) FROM ticks) AS last_tick,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint AS server
FROM gate
