-- Committed messages that the sequencer has passed and that are in no segment: there are none, unless somebody wrote to the
-- tables by other ways. Looked for among the oldest, where one that is never delivered ends up.
-- $1 the id behind which there may be messages: where all are gone is not looked at again; $2 how many to look at
-- Reads: incoming by id, oldest first; for each the segments of its partition, oldest first, until it is found.
WITH oldest AS MATERIALIZED (
    SELECT i.id, i.partition_id, i.stamp FROM {incoming} i WHERE i.id > $1 ORDER BY i.id LIMIT $2
)
SELECT (SELECT min(id) FROM oldest) AS first_id, count(*) AS strays
FROM oldest
WHERE pg_visible_in_snapshot(oldest.stamp, (SELECT t.seen FROM {tick} t ORDER BY t.id DESC LIMIT 1))
  AND NOT EXISTS (
      SELECT FROM {outgoing} o WHERE o.partition_id = oldest.partition_id AND oldest.id = ANY (o.ids))
