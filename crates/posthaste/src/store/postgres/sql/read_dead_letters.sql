-- Reads dead letters.
-- :ids
-- Reads: dead_letter by id.
-- A line that names a value which is not given is left out; see criteria.rs.
SELECT d.id, d.partition_id, d.seq, d.queue, d.partition::bigint AS partition, d.payload_type, d.key, d.headers, d.payload,
       d.attempts::bigint AS attempts, d.reason, d.redelivered_as,
       CASE WHEN d.status = 'reprocessing' AND (d.claimed_until <= clock_timestamp() OR d.claimed_until > clock_timestamp() + interval '8 days') THEN 'pending' ELSE d.status END AS status,
       (extract(epoch FROM d.created_at) * 1000000)::bigint AS created_us,
       (extract(epoch FROM d.rejected_at) * 1000000)::bigint AS rejected_us,
       (extract(epoch FROM d.changed_at) * 1000000)::bigint AS changed_us,
       (extract(epoch FROM d.claimed_until) * 1000000)::bigint AS claimed_us
FROM {dead_letter} d
WHERE d.id = ANY (:ids)
ORDER BY d.id
