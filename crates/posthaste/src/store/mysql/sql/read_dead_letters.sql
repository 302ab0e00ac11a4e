-- Reads dead letters.
-- :ids; :is_locked: as they are now, and not as they were when the caller's transaction first looked
-- Reads: dead_letter by its primary key. Locks: the rows, again.
-- Its limit is above all others: the caller's session may have one of its own.
-- Texts are returned as the bytes they are: the caller's session may be set to another character set.
-- A line that names a value which is not given is left out; see criteria.rs.
SELECT d.id, d.partition_id, d.seq, CONVERT(d.queue USING binary) AS queue, d.`partition`,
       CONVERT(d.payload_type USING binary) AS payload_type, CONVERT(d.`key` USING binary) AS `key`,
       CONVERT(d.headers USING binary) AS headers, d.payload, d.attempts, CONVERT(d.reason USING binary) AS reason,
       d.redelivered_as,
       CONVERT(CASE WHEN d.status = 'reprocessing' AND (d.claimed_until <= {now} OR d.claimed_until > {now} + 691200000000) THEN 'pending' ELSE d.status END USING binary) AS status,
       d.created_at AS created_us, d.rejected_at AS rejected_us, d.changed_at AS changed_us, d.claimed_until AS claimed_us
FROM {dead_letter} d FORCE INDEX (PRIMARY)
WHERE d.id IN (:ids)
ORDER BY d.id
LIMIT 10000
FOR UPDATE /* :is_locked */
