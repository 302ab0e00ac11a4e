-- Begins a handler's transaction: locks the partition, then looks at its cursor. Two statements: in one, the look would be
-- older than the lock.
-- By the simple protocol, in one round trip; the reader and the partition's number are filled in, and are a word and a
-- number of ours.
-- Locks: the partition (NO KEY UPDATE), until the end of the transaction; no row if somebody else has it.
-- Reads: cursor by its primary key, newest first; which statements an earlier handler has prepared by name in this session.
SELECT p.id AS partition_id, pg_backend_pid() AS session,
       (extract(epoch FROM now()) * 1000000)::bigint AS began,
       (SELECT string_agg(format('DEALLOCATE %I', s.name), '; ') FROM pg_prepared_statements s WHERE s.from_sql) AS deallocate
FROM {partition} p WHERE p.id = {number} FOR NO KEY UPDATE SKIP LOCKED;
SELECT c.epoch, c.owner FROM {cursor} c WHERE c.reader = '{reader}' AND c.partition_id = {number}
ORDER BY c.epoch DESC LIMIT 1
