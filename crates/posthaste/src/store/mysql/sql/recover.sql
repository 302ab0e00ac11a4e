-- Makes every message pending that is in no segment and not pending. The statement before it, in the same transaction, has
-- appended a tick, so nobody else ticks meanwhile.
-- Writes: pending.
-- Differs from the PostgreSQL version in that the next tick gives them their seqs.
INSERT INTO {pending} (id, last_id, partitions)
SELECT i.id, i.id, concat('[', i.partition_id, ']')
FROM {incoming} i
WHERE i.id NOT IN (
        SELECT p.id + u.n - 1 FROM {pending} p, JSON_TABLE(p.partitions, '$[*]' COLUMNS (n FOR ORDINALITY)) u)
  AND i.id NOT IN (SELECT u.id FROM {outgoing} o, JSON_TABLE(o.ids, '$[*]' COLUMNS (id BIGINT PATH '$')) u)
