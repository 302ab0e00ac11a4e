-- Begins to write, in a transaction that has only begun: from here on it waits for nobody, and nobody changes what it reads.
-- Writes: nothing.
-- Differs from PostgreSQL, where what is found is locked row by row.
UPDATE {dead_letter} SET id = id WHERE 0
