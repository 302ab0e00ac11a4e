-- The messages of a partition that have a seq behind this one, in their order, settled or not: those that vacuum has not removed.
-- $1 partition, $2 the seq behind which to begin, $3 how many seqs at most
-- Reads: outgoing by its primary key, on from there; incoming by id.
SELECT m.seq, i.id, i.partition_id, i.key, i.headers, i.payload_type, i.payload,
       (extract(epoch FROM i.created_at) * 1000000)::bigint AS created_us
FROM (
    SELECT o.last_seq - cardinality(o.ids) + f.skip + u.n AS seq, u.id
    FROM {outgoing} o
    CROSS JOIN LATERAL (SELECT greatest($2 - (o.last_seq - cardinality(o.ids)), 0)::integer AS skip) f
    CROSS JOIN LATERAL unnest(o.ids[f.skip + 1 : f.skip + $3]) WITH ORDINALITY AS u (id, n)
    WHERE o.partition_id = $1 AND o.last_seq > $2
    ORDER BY o.last_seq, u.n LIMIT $3
) m
CROSS JOIN LATERAL (SELECT * FROM {incoming} i WHERE i.id = m.id LIMIT 1) i
ORDER BY m.seq
