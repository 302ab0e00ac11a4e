-- Deletes dead letters that are locked.
-- :ids
-- Writes: dead_letter. Index: dead_letter by id.
DELETE FROM {dead_letter} WHERE id IN (SELECT value FROM json_each(:ids))
