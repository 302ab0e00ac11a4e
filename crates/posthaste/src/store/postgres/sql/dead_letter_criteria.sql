-- Which dead letters are meant: a part of the statements that find, read and count them.
-- :ids, :after an id, :queue, :partition, :key, :payload_type, :from and :before, microseconds since 1970, :older, an age in
-- microseconds, :unchanged, another, :unchanged_since, a time, :reason, a text in it; :status, and of a claim whether it :has_run_out or :is_running
-- A claim that has run out is pending. So is one that lasts for longer than any may: the clock has jumped back since.
-- A line that names a value which is not given is left out; see criteria.rs.
WHERE 1 = 1
  AND d.id = ANY (:ids)
  AND d.id > :after
  AND d.queue = :queue
  AND d.partition = :partition
  AND d.key = :key
  AND d.payload_type = :payload_type
  AND d.rejected_at >= timestamptz 'epoch' + :from * interval '1 microsecond'
  AND d.rejected_at < timestamptz 'epoch' + :before * interval '1 microsecond'
  AND d.rejected_at < clock_timestamp() - :older * interval '1 microsecond'
  AND strpos(d.reason, :reason) > 0
  AND d.changed_at < clock_timestamp() - :unchanged * interval '1 microsecond'
  AND d.changed_at < timestamptz 'epoch' + :unchanged_since * interval '1 microsecond'
  AND d.status = :status
  AND (d.claimed_until <= clock_timestamp() OR d.claimed_until > clock_timestamp() + interval '8 days') /* :has_run_out */
  AND d.claimed_until > clock_timestamp() AND d.claimed_until <= clock_timestamp() + interval '8 days' /* :is_running */
