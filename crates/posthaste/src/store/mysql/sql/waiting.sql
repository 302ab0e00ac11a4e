-- Which of these partitions have messages behind their cursors and nobody else who holds them.
-- ? an array of partitions; ? reader, ? reader; ? who asks: a lease of its own may be one that it believes it has let go
-- Reads: per partition the newest link and the newest segment, by their primary keys.
-- Differs from the PostgreSQL version in that there are no lateral joins on MariaDB.
-- Sorted by the partition too: where that comes from a join and is not named, MySQL reads a whole chain and sorts it. Not by
-- the reader: then MariaDB does so.
SELECT x.id
FROM JSON_TABLE(?, '$[*]' COLUMNS (id INT PATH '$')) x
STRAIGHT_JOIN {cursor} c FORCE INDEX (PRIMARY) ON c.reader = ? AND c.partition_id = x.id AND c.epoch = (
    SELECT n.epoch FROM {cursor} n WHERE n.reader = ? AND n.partition_id = x.id
    ORDER BY n.partition_id DESC, n.epoch DESC LIMIT 1)
WHERE (c.lease_until IS NULL OR c.owner = ? OR c.lease_until <= {now} OR c.lease_until > {now} + c.lease_ms * 1000)
  AND c.processed_seq < (SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = x.id
                         ORDER BY o.partition_id DESC, o.last_seq DESC LIMIT 1)
