-- Makes every message pending that is in no segment and not pending. The statement before it, in the same transaction, has
-- appended a tick, so nobody else ticks meanwhile.
-- Writes: pending.
-- Differs from the PostgreSQL version in that the next tick gives them their seqs.
INSERT INTO {pending} (id, partition_id)
SELECT i.id, i.partition_id
FROM {incoming} i
LEFT JOIN {pending} p ON p.id = i.id
WHERE p.id IS NULL
  AND i.id NOT IN (SELECT u.id FROM {outgoing} o, JSON_TABLE(o.ids, '$[*]' COLUMNS (id BIGINT PATH '$')) u)
