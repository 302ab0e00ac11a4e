-- Messages that should be in a segment behind their partition's cursor and are not: settled a moment ago, or never to be
-- delivered. A window over the messages that are old enough to have been delivered and removed long since.
-- $1 reader, $2 the id behind which the window begins, $3 how many messages it has, $4 how old in seconds they must be
-- Reads: incoming by id; per message the newest link of its partition and the segments behind it, until it is found.
WITH looked_at AS MATERIALIZED (
    SELECT i.id, i.partition_id, i.stamp, i.created_at FROM {incoming} i WHERE i.id > $2 ORDER BY i.id LIMIT $3
)
SELECT count(*) AS looked_at, min(l.id) AS first_id, max(l.id) AS last_id,
       coalesce(array_agg(l.id) FILTER (
           WHERE l.created_at < clock_timestamp() - $4 * interval '1 s'
             AND pg_visible_in_snapshot(l.stamp, (SELECT t.seen FROM {tick} t ORDER BY t.id DESC LIMIT 1))
             AND NOT EXISTS (
                 SELECT FROM {outgoing} o
                 WHERE o.partition_id = l.partition_id AND l.id = ANY (o.ids) AND o.last_seq > (
                     SELECT c.processed_seq FROM {cursor} c WHERE c.reader = $1 AND c.partition_id = l.partition_id
                     ORDER BY c.epoch DESC LIMIT 1))), '{}') AS suspects
FROM looked_at l
