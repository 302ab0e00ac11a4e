-- The newest link of a partition's cursor: whose is it, for how long, and is there anything behind it?
-- ?1 reader, ?2 partition, ?3 who asks
-- Reads: cursor and outgoing by their primary keys, newest first; partition and queue by id.
SELECT tip.epoch, tip.processed_seq, tip.owner IS NOT NULL AS is_owned, tip.owner IS ?3 AS is_mine,
       -- A lease that ends further ahead than it is long: the clock jumped back since.
       (tip.lease_until IS NULL OR tip.owner = ?3 OR tip.lease_until <= {now}
           OR tip.lease_until > {now} + tip.lease_ms * 1000) IS TRUE AS is_free,
       coalesce(tip.lease_until - {now}, 0) AS micros_left,
       coalesce((SELECT o.last_seq FROM {outgoing} AS o WHERE o.partition_id = ?2 ORDER BY o.last_seq DESC LIMIT 1), 0) AS head,
       EXISTS (SELECT 1 FROM {partition} AS p CROSS JOIN {queue} AS q ON q.id = p.queue_id
               WHERE p.id = ?2 AND q.paused_at IS NOT NULL) AS is_paused
FROM {cursor} AS tip
WHERE tip.reader = ?1 AND tip.partition_id = ?2
ORDER BY tip.epoch DESC LIMIT 1
