-- Which of these partitions have messages behind their cursors, no other lease owner, and no back-off.
-- $1 reader, $2 partitions, $3 who asks: a lease of its own may be one that it believes it has let go, if the settlement
-- that did so was lost in a crash of the server
-- Reads: per partition the newest link and the newest segment, by their primary keys.
SELECT p.id
FROM unnest($2::integer[]) AS p (id)
CROSS JOIN LATERAL (
    SELECT c.processed_seq, c.lease_until IS NULL OR c.owner = $3 OR c.lease_until <= clock_timestamp()
               OR c.lease_until > clock_timestamp() + c.lease_ms * interval '1 ms' AS is_free
    FROM {cursor} c WHERE c.reader = $1 AND c.partition_id = p.id ORDER BY c.epoch DESC LIMIT 1) tip
CROSS JOIN LATERAL (
    SELECT o.last_seq FROM {outgoing} o WHERE o.partition_id = p.id ORDER BY o.last_seq DESC LIMIT 1) head
WHERE head.last_seq > tip.processed_seq AND tip.is_free
