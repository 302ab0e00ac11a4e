-- The last id that was given out, as far as SQLite knows, and as far as the other tables do: what AUTOINCREMENT counts is kept in
-- a table that anybody may write to, and that a copy by other means may lack.
-- Reads: sqlite_sequence; the newest tick, the last id of each segment, the newest dead letter.
SELECT coalesce((SELECT max(s.seq) FROM main.sqlite_sequence AS s WHERE s.name = {incoming_literal}), 0) AS counted,
       max((SELECT t.last_id FROM {tick} AS t ORDER BY t.id DESC LIMIT 1),
           coalesce((SELECT max(o.ids ->> '$[#-1]') FROM {outgoing} AS o), 0),
           coalesce((SELECT max(d.id) FROM {dead_letter} AS d), 0)) AS given
