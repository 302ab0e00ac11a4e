-- What vacuum could remove from the partitions whose cursors moved since it last looked.
-- $1 reader, $2 partitions, $3 the newest epochs that were seen, $4 the first epochs and $5 the seqs behind which something
-- may be left: what vacuum has removed is not looked at again, however long its dead versions stay
-- Reads: cursor and outgoing by their primary keys, one row at either end of a partition.
SELECT p.id, tip.epoch, tip.processed_seq, coalesce(head.last_seq, 0) AS head,
       (SELECT c.epoch FROM {cursor} c WHERE c.reader = $1 AND c.partition_id = p.id AND c.epoch >= p.first_epoch
        ORDER BY c.epoch LIMIT 1) AS first_epoch,
       (SELECT o.last_seq - cardinality(o.ids) + 1 FROM {outgoing} o WHERE o.partition_id = p.id AND o.last_seq > p.after_seq
        ORDER BY o.last_seq LIMIT 1) AS first_seq,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint AS server
FROM unnest($2::integer[], $3::bigint[], $4::bigint[], $5::bigint[]) AS p (id, seen_epoch, first_epoch, after_seq)
CROSS JOIN LATERAL (
    SELECT c.epoch, c.processed_seq FROM {cursor} c WHERE c.reader = $1 AND c.partition_id = p.id
    ORDER BY c.epoch DESC LIMIT 1) tip
LEFT JOIN LATERAL (
    SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = p.id ORDER BY o.last_seq DESC LIMIT 1) head ON true
WHERE tip.epoch <> p.seen_epoch
