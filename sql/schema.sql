-- The schema version of the database.

-- name: is_there
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'mesh_schema'

-- name: versions
SELECT max(version) AS version, max(oldest_code) AS oldest_code FROM mesh_schema

-- name: applied
SELECT version, oldest_code, applied_at FROM mesh_schema ORDER BY version

-- name: refuse_unless_version
-- The version of the database has not changed since it was read. NULL: it has none.
INSERT INTO refusals (reason) SELECT 'refused' WHERE (SELECT max(version) FROM mesh_schema) IS NOT ?

-- name: record_version
INSERT INTO mesh_schema (version, oldest_code) VALUES (?, ?) ON CONFLICT DO NOTHING

-- name: tables
-- All tables but those of the database itself.
SELECT name FROM sqlite_master
WHERE type = 'table' AND name NOT GLOB 'sqlite_*' AND name NOT GLOB 'libsql_*' ORDER BY name
