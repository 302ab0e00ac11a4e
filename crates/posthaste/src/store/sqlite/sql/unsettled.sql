-- Which of these partitions have messages that are committed and not settled, and what is first of them: at one moment, for a
-- tick moves messages from one table's account to the other's.
-- ?1 reader, ?2 an array of partitions
-- Reads: per partition the newest link, the newest segment and the one behind the cursor, by their primary keys; all messages
-- behind what the newest tick saw, by id; incoming by id.
-- Differs from the PostgreSQL version in that no tick has taken what is above the newest one's last id.
WITH fresh AS (
    SELECT i.partition_id, count(*) AS unsequenced, min(i.id) AS first_id
    FROM {incoming} AS i
    WHERE i.id > (SELECT t.last_id FROM {tick} AS t ORDER BY t.id DESC LIMIT 1)
    GROUP BY i.partition_id
), state AS (
    SELECT p.value AS partition_id, tip.processed_seq, tip.attempts, tip.last_error,
           coalesce(fresh.unsequenced, 0) AS unsequenced, fresh.first_id,
           coalesce((SELECT o.last_seq FROM {outgoing} AS o WHERE o.partition_id = p.value
                     ORDER BY o.last_seq DESC LIMIT 1), 0) AS head,
           (SELECT o.ids ->> (tip.processed_seq + 1 - o.first_seq) FROM {outgoing} AS o
            WHERE o.partition_id = p.value AND o.last_seq > tip.processed_seq ORDER BY o.last_seq LIMIT 1) AS next_id
    FROM json_each(?2) AS p
    CROSS JOIN {cursor} AS tip ON tip.reader = ?1 AND tip.partition_id = p.value AND tip.epoch = (
        SELECT c.epoch FROM {cursor} AS c WHERE c.reader = ?1 AND c.partition_id = p.value ORDER BY c.epoch DESC LIMIT 1)
    LEFT JOIN fresh ON fresh.partition_id = p.value
)
SELECT s.partition_id, max(s.head - s.processed_seq, 0) AS sequenced, s.unsequenced, i.id AS first_id,
       {now} - i.created_at AS age_us, s.attempts, s.last_error
FROM state AS s
LEFT JOIN {incoming} AS i ON i.id = coalesce(s.next_id, s.first_id)
WHERE s.head > s.processed_seq OR s.unsequenced > 0
ORDER BY s.partition_id
