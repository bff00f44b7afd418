-- Which schema the database has.

-- name: is_there
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'mesh_schema'

-- name: versions
SELECT max(version) AS version, max(oldest_code) AS oldest_code FROM mesh_schema

-- name: record_version
INSERT INTO mesh_schema (version, oldest_code) VALUES (?, ?) ON CONFLICT DO NOTHING
