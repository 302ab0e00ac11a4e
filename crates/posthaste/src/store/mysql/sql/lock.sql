-- Begins a handler's transaction: locks the partition, then looks at its cursor, in this order: the look must not be older
-- than the lock.
-- By the text protocol, in one round trip; the reader, the partition's number and the savepoint are filled in, and are words
-- and numbers of ours.
-- Locks: the partition, until the end of the transaction; no row if somebody else has it.
-- Reads: cursor by its primary key, newest first.
SELECT p.id AS partition_id, CONNECTION_ID() AS session, {now} AS began FROM {partition} p WHERE p.id = {number}
FOR UPDATE SKIP LOCKED;
SELECT c.epoch, c.owner FROM {cursor} c WHERE c.reader = '{reader}' AND c.partition_id = {number}
ORDER BY c.epoch DESC LIMIT 1;
SAVEPOINT {savepoint}
