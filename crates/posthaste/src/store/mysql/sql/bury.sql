-- Writes dead letters, in the transaction that moves the cursor over them.
-- ? partition, ? queue, ? number of the partition, ? an array of [id, seq, reason, attempts], as bytes: the session may be set
-- to any character set
-- Writes: dead_letter. Reads: incoming by id.
INSERT INTO {dead_letter} (id, partition_id, seq, queue, `partition`, payload_type, `key`, headers, payload, created_at,
                           attempts, reason, rejected_at, changed_at)
SELECT i.id, ?, d.seq, ?, ?, i.payload_type, i.`key`, i.headers, i.payload, i.created_at, d.attempts, d.reason, {now}, {now}
FROM JSON_TABLE(CONVERT(? USING utf8mb4), '$[*]' COLUMNS (id BIGINT PATH '$[0]', seq BIGINT PATH '$[1]',
                                   reason TEXT CHARACTER SET utf8mb4 PATH '$[2]', attempts INT PATH '$[3]')) d
STRAIGHT_JOIN {incoming} i FORCE INDEX (PRIMARY) ON i.id = d.id
