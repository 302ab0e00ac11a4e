-- Reads a batch: the messages behind a cursor, in no order; one that should be there and is not has no id.
-- ?1 partition, ?2 the seq behind which it begins, ?3 how many messages at most
-- Index: outgoing by its primary key; a segment has at most 256 messages, so none that ends further ahead has any of these.
-- incoming by id.
SELECT o.first_seq + m.key AS seq, i.id, i.key, i.headers, i.payload_type, i.payload, i.created_at AS created_us
FROM {outgoing} AS o CROSS JOIN json_each(o.ids) AS m LEFT JOIN {incoming} AS i ON i.id = m.value
WHERE o.partition_id = ?1 AND o.last_seq > ?2 AND o.last_seq < ?2 + ?3 + 256
  AND o.first_seq + m.key BETWEEN ?2 + 1 AND ?2 + ?3
