-- Makes AUTOINCREMENT count on from here.
-- ?1 the last id that was given out
-- Writes: sqlite_sequence. In the transaction of forget_count.sql.
INSERT INTO main.sqlite_sequence (name, seq) VALUES ({incoming_literal}, ?1)
