-- Whether there are ticks that vacuum could remove, so that it need not keep others from writing to find out.
-- ?1 the first tick that may be left
-- Reads: tick by id.
SELECT EXISTS (SELECT 1 FROM {tick} AS t WHERE t.id >= ?1 AND t.id < (SELECT max(n.id) FROM {tick} AS n)) AS is_waste
