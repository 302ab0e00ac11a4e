-- The parts of segments that make up each batch: most messages behind processed_seq, by the seq of the first in each part.
-- A part of what acquires and settles.
    SELECT b.partition_id, o.base + f.skip + 1 AS first_seq, o.ids[f.skip + 1 : least(b.processed_seq + b.most - o.base, 256)::integer] AS ids
    FROM batch b
    CROSS JOIN LATERAL (
        SELECT o.last_seq - cardinality(o.ids) AS base, o.ids
        FROM {outgoing} o
        WHERE o.partition_id = b.partition_id AND o.last_seq > b.processed_seq AND o.last_seq < b.processed_seq + b.most + 256
        ORDER BY o.last_seq OFFSET 0
    ) o
    CROSS JOIN LATERAL (SELECT greatest(b.processed_seq - o.base, 0)::integer AS skip) f
    WHERE o.base < b.processed_seq + b.most
