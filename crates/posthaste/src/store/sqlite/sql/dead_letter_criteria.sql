-- Which dead letters are meant: a part of the statements that find, read and count them.
-- :ids, :after an id, :queue, :partition, :key, :payload_type, :from and :before, :older, an age in microseconds, :unchanged, another, :unchanged_since, a time,
-- :reason, a text in it; :status, and of a claim whether it :has_run_out or :is_running
-- A claim that has run out is pending. So is one that lasts for longer than any may: the clock has jumped back since.
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
  AND d.changed_at < {now} - :unchanged
  AND d.changed_at < :unchanged_since
  AND d.status = :status
  AND (d.claimed_until <= {now} OR d.claimed_until > {now} + 691200000000) /* :has_run_out */
  AND d.claimed_until > {now} AND d.claimed_until <= {now} + 691200000000 /* :is_running */
