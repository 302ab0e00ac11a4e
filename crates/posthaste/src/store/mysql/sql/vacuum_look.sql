-- How far vacuum may go in these partitions, in the transaction that removes.
-- ? an array of [partition, first epoch, end of the epochs, seq after which, seq up to which]; ? reader, ? reader
-- Reads: cursor and outgoing by their primary keys, newest first.
-- Sorted by the partition too: where that comes from a join and is not named, MySQL reads a whole chain and sorts it. Not by
-- the reader: then MariaDB does so.
SELECT x.id, x.first_epoch, least(x.end_epoch, c.epoch) AS end_epoch, x.after_seq, least(x.to_seq, c.processed_seq) AS to_seq,
       coalesce((SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = x.id
                 ORDER BY o.partition_id DESC, o.last_seq DESC LIMIT 1), 0) AS head
FROM JSON_TABLE(?, '$[*]' COLUMNS (id INT PATH '$[0]', first_epoch BIGINT PATH '$[1]', end_epoch BIGINT PATH '$[2]',
                                   after_seq BIGINT PATH '$[3]', to_seq BIGINT PATH '$[4]')) x
STRAIGHT_JOIN {cursor} c FORCE INDEX (PRIMARY) ON c.reader = ? AND c.partition_id = x.id AND c.epoch = (
    SELECT n.epoch FROM {cursor} n WHERE n.reader = ? AND n.partition_id = x.id
    ORDER BY n.partition_id DESC, n.epoch DESC LIMIT 1)
