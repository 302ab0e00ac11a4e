-- The messages of a partition that have a seq behind this one, in their order, settled or not: those that vacuum has not removed.
-- ?1 partition, ?2 the seq behind which to begin, ?3 how many at most
-- Reads: outgoing by its primary key, on from there; incoming by id.
-- Differs from the PostgreSQL version in that messages are counted, not their seqs.
SELECT o.first_seq + m.key AS seq, i.id, i.partition_id, i.key, i.headers, i.payload_type, i.payload, i.created_at AS created_us
FROM {outgoing} AS o
CROSS JOIN json_each(o.ids) AS m
CROSS JOIN {incoming} AS i ON i.id = m.value
WHERE o.partition_id = ?1 AND o.last_seq > ?2 AND o.first_seq + m.key > ?2
ORDER BY o.last_seq, m.key LIMIT ?3
