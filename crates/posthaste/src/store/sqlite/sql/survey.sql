-- What vacuum could remove from the partitions whose cursors moved since it last looked.
-- ?1 reader, ?2 an array of [partition, the newest epoch that was seen, the first epoch and the seq behind which something may
-- be left]: what vacuum has removed is not looked at again
-- Reads: cursor and outgoing by their primary keys, one row at either end of a partition.
SELECT p.value ->> 0 AS id, tip.epoch, tip.processed_seq,
       coalesce((SELECT o.last_seq FROM {outgoing} AS o WHERE o.partition_id = p.value ->> 0
                 ORDER BY o.last_seq DESC LIMIT 1), 0) AS head,
       (SELECT c.epoch FROM {cursor} AS c WHERE c.reader = ?1 AND c.partition_id = p.value ->> 0 AND c.epoch >= p.value ->> 2
        ORDER BY c.epoch LIMIT 1) AS first_epoch,
       (SELECT o.first_seq FROM {outgoing} AS o WHERE o.partition_id = p.value ->> 0 AND o.last_seq > p.value ->> 3
        ORDER BY o.last_seq LIMIT 1) AS first_seq
FROM json_each(?2) AS p
CROSS JOIN {cursor} AS tip ON tip.reader = ?1 AND tip.partition_id = p.value ->> 0 AND tip.epoch = (
    SELECT c.epoch FROM {cursor} AS c WHERE c.reader = ?1 AND c.partition_id = p.value ->> 0 ORDER BY c.epoch DESC LIMIT 1)
WHERE tip.epoch <> p.value ->> 1
