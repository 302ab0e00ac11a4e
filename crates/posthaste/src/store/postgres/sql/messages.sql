-- The messages of each batch: most of them behind processed_seq in its partition, in order. A part of what acquires and
-- settles: one that should be there and is not has a seq, and no id.
    SELECT b.partition_id, s.seq, i.id, i.key, i.headers, i.payload_type, i.payload, i.created_at AS created_us
    FROM batch b
    CROSS JOIN LATERAL (
        SELECT o.last_seq - cardinality(o.ids) + f.skip + u.n AS seq, u.id
        FROM {outgoing} o
        CROSS JOIN LATERAL (
            SELECT greatest(b.processed_seq - (o.last_seq - cardinality(o.ids)), 0)::integer AS skip) f
        CROSS JOIN LATERAL unnest(o.ids[f.skip + 1 : f.skip + b.most]) WITH ORDINALITY AS u (id, n)
        WHERE o.partition_id = b.partition_id AND o.last_seq > b.processed_seq
        ORDER BY o.last_seq, u.n
        LIMIT b.most
    ) s
    LEFT JOIN LATERAL (SELECT * FROM {incoming} i WHERE i.id = s.id LIMIT 1) i ON true
