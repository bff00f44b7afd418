-- The content of a database: its tables and other definitions.

-- name: columns
-- Without virtual tables, their shadow tables and the tables of SQLite and libSQL themselves.
SELECT t.name AS table_name, t.wr AS without_rowid, c.name AS column_name, c.pk AS key_position
FROM pragma_table_list AS t JOIN pragma_table_info(t.name) AS c
WHERE t.schema = 'main' AND t.type = 'table' AND t.name NOT GLOB 'sqlite_*' AND t.name NOT GLOB 'libsql_*'
ORDER BY t.name, c.cid

-- name: definitions
-- Without the tables of SQLite itself. Triggers and indexes under any name: an attacker may have chosen it.
SELECT type, name, tbl_name, sql FROM sqlite_master
WHERE sql IS NOT NULL AND NOT (type = 'table' AND name GLOB 'sqlite_*')
ORDER BY type = 'trigger', type = 'view', rowid

-- name: has_sequences
-- The last ids of AUTOINCREMENT tables; the table exists only if there is such a table.
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'sqlite_sequence'

-- name: sequences
SELECT name, seq FROM sqlite_sequence

-- name: forget_sequence
DELETE FROM sqlite_sequence WHERE name = ?

-- name: set_sequence
INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)
