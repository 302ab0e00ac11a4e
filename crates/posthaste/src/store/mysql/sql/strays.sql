-- How many of these messages are committed, but neither pending nor in any segment: there are none, unless somebody wrote to
-- the tables by other ways.
-- ? an array of ids of messages that are suspected; ? the id behind which a run may begin that has one of them, ? the last of them
-- Reads: incoming by id; pending by its primary key, a range; all segments of their partitions.
SELECT count(*) AS strays
FROM JSON_TABLE(?, '$[*]' COLUMNS (id BIGINT PATH '$')) x
STRAIGHT_JOIN {incoming} i FORCE INDEX (PRIMARY) ON i.id = x.id
WHERE i.id NOT IN (SELECT p.id + u.n - 1 FROM {pending} p
                     STRAIGHT_JOIN JSON_TABLE(p.partitions, '$[*]' COLUMNS (n FOR ORDINALITY)) u
                     WHERE p.id > ? AND p.id <= ?)
  AND NOT EXISTS (SELECT 1 FROM {outgoing} o
                  WHERE o.partition_id = i.partition_id AND LOCATE(i.id, o.ids) > 0
                    AND JSON_CONTAINS(o.ids, CAST(i.id AS CHAR)))
