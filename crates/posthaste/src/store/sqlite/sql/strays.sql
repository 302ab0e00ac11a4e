-- Which of these messages are committed, and passed by the sequencer, but in no segment at all: there are none, unless
-- somebody wrote to the tables by other ways.
-- ?1 an array of ids of messages that are suspected
-- Reads: incoming by id; all segments of their partitions.
SELECT count(*) AS strays
FROM json_each(?1) AS s
CROSS JOIN {incoming} AS i ON i.id = s.value
WHERE i.id <= (SELECT t.last_id FROM {tick} AS t ORDER BY t.id DESC LIMIT 1)
  AND NOT EXISTS (
      SELECT 1 FROM {outgoing} AS o
      WHERE o.partition_id = i.partition_id AND EXISTS (SELECT 1 FROM json_each(o.ids) AS m WHERE m.value = i.id))
