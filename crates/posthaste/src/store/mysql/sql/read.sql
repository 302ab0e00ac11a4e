-- The messages behind a cursor, in no order.
-- ? partition, ? and ? the processed seq, and how far a segment can end that begins in the batch; ? the last seq of the batch;
-- ? and ? its first and its last
-- Reads: outgoing by its primary key, a range; incoming by id. A message that is missing shows as nulls.
-- Texts are returned as the bytes they are: a handler may have set its session, in which this is read, to another character
-- set.
-- Differs from PostgreSQL, where the statement that appends returns the batch.
SELECT CAST(o.first_seq + u.n - 1 AS SIGNED) AS seq, i.id, CONVERT(i.`key` USING binary) AS `key`,
       CONVERT(i.headers USING binary) AS headers, CONVERT(i.payload_type USING binary) AS payload_type, i.payload,
       i.created_at AS created_us
FROM {outgoing} o
STRAIGHT_JOIN JSON_TABLE(o.ids, '$[*]' COLUMNS (n FOR ORDINALITY, id BIGINT PATH '$')) u
LEFT JOIN {incoming} i FORCE INDEX (PRIMARY) ON i.id = u.id
WHERE o.partition_id = ? AND o.last_seq > ? AND o.last_seq < ? AND o.first_seq <= ?
  AND o.first_seq + u.n - 1 BETWEEN ? AND ?
