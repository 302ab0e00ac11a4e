-- Messages that the sequencer has passed and that are in no segment, by id: there are none, unless somebody wrote to the tables
-- by other ways.
-- Reads: all of incoming and outgoing. Inside a transaction that excludes other writers.
SELECT i.id, i.partition_id
FROM {incoming} AS i
WHERE i.id <= (SELECT t.last_id FROM {tick} AS t ORDER BY t.id DESC LIMIT 1)
  AND i.id NOT IN (SELECT m.value FROM {outgoing} AS o CROSS JOIN json_each(o.ids) AS m)
ORDER BY i.id
