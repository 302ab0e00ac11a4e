-- Which dead letters are meant: a part of the statements that find, read and count them.
-- :ids, :after an id, :queue, :partition, :key, :payload_type, :from and :before, :older, an age in microseconds, :reason, a text
-- in it; :is_pending, :is_reprocessing, :has_ended or :status
-- A claim that has run out is pending.
-- Differs from the PostgreSQL version in that lists of ids are written out, that texts come as bytes and are told apart by their bytes,
-- and that times are microseconds since 1970.
-- A line that names a value which is not given is left out; see criteria.rs.
WHERE 1 = 1
  AND d.id IN (:ids)
  AND d.id > :after
  AND d.queue = :queue
  AND d.`partition` = :partition
  AND d.`key` = CONVERT(:key USING utf8mb4) COLLATE utf8mb4_bin
  AND d.payload_type = :payload_type
  AND d.rejected_at >= :from
  AND d.rejected_at < :before
  AND d.rejected_at < {now} - :older
  AND LOCATE(CONVERT(:reason USING utf8mb4) COLLATE utf8mb4_bin, d.reason) > 0
  AND (d.status = 'pending' OR d.status = 'reprocessing' AND d.claimed_until <= {now}) /* :is_pending */
  AND d.status = 'reprocessing' AND d.claimed_until > {now} /* :is_reprocessing */
  AND d.status IN ('resolved', 'discarded') /* :has_ended */
  AND d.status = :status
