-- Which of these partitions have messages behind their cursors and nobody else who holds them.
-- ?1 reader, ?2 an array of partitions, ?3 who asks: a lease of its own may be one that it believes it has let go, if the
-- settlement that did so was lost in a power failure
-- Reads: per partition the newest link and the newest segment, by their primary keys.
SELECT p.value AS id
FROM json_each(?2) AS p
CROSS JOIN {cursor} AS tip ON tip.reader = ?1 AND tip.partition_id = p.value AND tip.epoch = (
    SELECT c.epoch FROM {cursor} AS c WHERE c.reader = ?1 AND c.partition_id = p.value ORDER BY c.epoch DESC LIMIT 1)
WHERE tip.processed_seq < (SELECT o.last_seq FROM {outgoing} AS o WHERE o.partition_id = p.value ORDER BY o.last_seq DESC LIMIT 1)
  AND (tip.lease_until IS NULL OR tip.owner = ?3 OR tip.lease_until <= {now} OR tip.lease_until > {now} + tip.lease_ms * 1000)
