-- Writes the segments of a tick behind the heads of their partitions.
-- ? an array of [partition, place of the first message behind the head, of the last, ids]
-- Writes: outgoing. Locks: none but the new rows: only who has the tick's lock writes here.
-- Index: outgoing by its primary key, newest first.
-- Sorted by the partition too: where that comes from a join and is not named, MySQL reads a whole chain and sorts it.
INSERT INTO {outgoing} (partition_id, first_seq, last_seq, sequenced_at, ids)
SELECT x.partition_id,
       x.first + coalesce((SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = x.partition_id
                           ORDER BY o.partition_id DESC, o.last_seq DESC LIMIT 1), 0),
       x.last + coalesce((SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = x.partition_id
                          ORDER BY o.partition_id DESC, o.last_seq DESC LIMIT 1), 0),
       {now}, x.ids
FROM JSON_TABLE(?, '$[*]' COLUMNS (partition_id INT PATH '$[0]', first BIGINT PATH '$[1]', last BIGINT PATH '$[2]',
                                   ids TEXT PATH '$[3]')) x
