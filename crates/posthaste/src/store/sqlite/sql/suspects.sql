-- Messages that should be in a segment behind their partition's cursor and are not: settled a moment ago, or never to be
-- delivered. A window over the messages that are old enough to have been delivered and removed long since.
-- ?1 reader, ?2 the id behind which the window begins, ?3 how many messages it has, ?4 how old in seconds they must be
-- Reads: incoming by id; per message the newest link of its partition and the segments behind it, until it is found. Ids
-- ascend in a segment, so most segments are known by their ends not to have it.
-- Differs from the PostgreSQL version in that what the sequencer has passed is what is not above the newest tick's last id.
SELECT l.id,
       l.created_at < {now} - ?4 * 1000000
       AND l.id <= (SELECT t.last_id FROM {tick} AS t ORDER BY t.id DESC LIMIT 1)
       AND NOT EXISTS (
           SELECT 1 FROM {outgoing} AS o
           WHERE o.partition_id = l.partition_id
             AND o.last_seq > (SELECT c.processed_seq FROM {cursor} AS c WHERE c.reader = ?1 AND c.partition_id = l.partition_id
                               ORDER BY c.epoch DESC LIMIT 1)
             AND l.id BETWEEN o.ids ->> '$[0]' AND o.ids ->> '$[#-1]'
             AND EXISTS (SELECT 1 FROM json_each(o.ids) AS m WHERE m.value = l.id)) AS is_suspect
FROM (SELECT i.id, i.partition_id, i.created_at FROM {incoming} AS i WHERE i.id > ?2 ORDER BY i.id LIMIT ?3) AS l
ORDER BY l.id
