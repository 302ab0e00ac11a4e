-- Which of these messages are committed, and passed by the sequencer, but in no segment at all: there are none, unless
-- somebody wrote to the tables by other ways.
-- $1 ids of messages that are suspected
-- Reads: incoming by id; all segments of their partitions.
SELECT count(*) AS strays
FROM {incoming} i
WHERE i.id = ANY ($1::bigint[])
  AND pg_visible_in_snapshot(i.stamp, (SELECT t.seen FROM {tick} t ORDER BY t.id DESC LIMIT 1))
  AND NOT EXISTS (SELECT FROM {outgoing} o WHERE o.partition_id = i.partition_id AND i.id = ANY (o.ids))
