-- The newest link of the chain of ticks.
SELECT t.id FROM {tick} t ORDER BY t.id DESC LIMIT 1
