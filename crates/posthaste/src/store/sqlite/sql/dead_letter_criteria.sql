-- Which dead letters are meant: a part of the statements that find, read and count them.
-- :ids, :after an id, :queue, :partition, :key, :payload_type, :from and :before, :older, an age in microseconds, :reason, a text
-- in it; :is_pending, :is_reprocessing, :has_ended or :status
-- A claim that has run out is pending.
-- Differs from the PostgreSQL version in that lists are arrays as text, and times are microseconds since 1970.
-- A line that names a value which is not given is left out; see criteria.rs.
WHERE 1 = 1
  AND d.id IN (SELECT value FROM json_each(:ids))
  AND d.id > :after
  AND d.queue = :queue
  AND d.partition = :partition
  AND d.key = :key
  AND d.payload_type = :payload_type
  AND d.rejected_at >= :from
  AND d.rejected_at < :before
  AND d.rejected_at < {now} - :older
  AND instr(d.reason, :reason) > 0
  AND (d.status = 'pending' OR d.status = 'reprocessing' AND d.claimed_until <= {now}) /* :is_pending */
  AND d.status = 'reprocessing' AND d.claimed_until > {now} /* :is_reprocessing */
  AND d.status IN ('resolved', 'discarded') /* :has_ended */
  AND d.status = :status
