-- What vacuum could remove from the partitions whose cursors moved since it last looked.
-- ? reader; ? an array of [partition, the newest epoch that was seen, the first epoch and the seq behind which something may
-- be left]; ? reader, ? reader
-- Reads: cursor and outgoing by their primary keys, one row at either end of a partition.
-- Sorted by the partition too: where that comes from a join and is not named, MySQL reads a whole chain and sorts it. Not by
-- the reader: then MariaDB does so.
SELECT x.id, c.epoch, c.processed_seq,
       coalesce((SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = x.id
                 ORDER BY o.partition_id DESC, o.last_seq DESC LIMIT 1), 0) AS head,
       (SELECT f.epoch FROM {cursor} f WHERE f.reader = ? AND f.partition_id = x.id AND f.epoch >= x.first_epoch
        ORDER BY f.partition_id, f.epoch LIMIT 1) AS first_epoch,
       (SELECT o.first_seq FROM {outgoing} o WHERE o.partition_id = x.id AND o.last_seq > x.after_seq
        ORDER BY o.partition_id, o.last_seq LIMIT 1) AS first_seq
FROM JSON_TABLE(?, '$[*]' COLUMNS (id INT PATH '$[0]', seen_epoch BIGINT PATH '$[1]', first_epoch BIGINT PATH '$[2]',
                                   after_seq BIGINT PATH '$[3]')) x
STRAIGHT_JOIN {cursor} c FORCE INDEX (PRIMARY) ON c.reader = ? AND c.partition_id = x.id AND c.epoch = (
    SELECT n.epoch FROM {cursor} n WHERE n.reader = ? AND n.partition_id = x.id
    ORDER BY n.partition_id DESC, n.epoch DESC LIMIT 1)
WHERE c.epoch <> x.seen_epoch
