-- Reads dead letters.
-- :ids
-- Reads: dead_letter by id.
-- A line that names a value which is not given is left out; see criteria.rs.
SELECT d.id, d.partition_id, d.seq, d.queue, d.partition, d.payload_type, d.key, d.headers, d.payload, d.attempts, d.reason,
       d.redelivered_as,
       iif(d.status = 'reprocessing' AND (d.claimed_until <= {now} OR d.claimed_until > {now} + 691200000000), 'pending', d.status) AS status,
       d.created_at AS created_us, d.rejected_at AS rejected_us, d.changed_at AS changed_us, d.claimed_until AS claimed_us
FROM {dead_letter} AS d
WHERE d.id IN (SELECT value FROM json_each(:ids))
ORDER BY d.id
