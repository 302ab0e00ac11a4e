-- Whether there are messages that the newest tick has not seen.
-- Reads: the newest tick and the newest message, by their ids.
SELECT coalesce((SELECT max(i.id) FROM {incoming} AS i), 0) > t.last_id AS is_news
FROM {tick} AS t
ORDER BY t.id DESC LIMIT 1
