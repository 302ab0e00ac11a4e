-- Which dead letters are meant: a part of the statements that find, read and count them.
-- :ids, :after an id, :queue, :partition, :key, :payload_type, :from and :before, :older, an age in microseconds, :unchanged, another, :unchanged_since, a time,
-- :reason, a text in it; :status, and of a claim whether it :has_run_out or :is_running
-- A claim that has run out is pending. So is one that lasts for longer than any may: the clock has jumped back since.
-- Differs from the PostgreSQL version in that times are microseconds since 1970, and that texts come as bytes. What may end in spaces is
-- compared as bytes: the server's collations take no notice of them.
-- A line that names a value which is not given is left out; see criteria.rs.
WHERE 1 = 1
  AND d.id IN (:ids)
  AND d.id > :after
  AND d.queue = :queue
  AND d.`partition` = :partition
  AND CONVERT(d.`key` USING binary) = :key
  AND CONVERT(d.payload_type USING binary) = :payload_type
  AND d.rejected_at >= :from
  AND d.rejected_at < :before
  AND d.rejected_at < {now} - :older
  AND LOCATE(CONVERT(:reason USING utf8mb4) COLLATE utf8mb4_bin, d.reason) > 0
  AND d.changed_at < {now} - :unchanged
  AND d.changed_at < :unchanged_since
  AND d.status = :status
  AND (d.claimed_until <= {now} OR d.claimed_until > {now} + 691200000000) /* :has_run_out */
  AND d.claimed_until > {now} AND d.claimed_until <= {now} + 691200000000 /* :is_running */
