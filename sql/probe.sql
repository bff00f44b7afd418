-- Queries about the database itself.

-- name: ping
SELECT 1

-- name: now_ms
-- By the database's clock, in milliseconds since 1970.
SELECT RAW_MS AS now_ms

-- name: checkpoint_pages
-- The number of pages after which a commit also checkpoints; 0: never.
PRAGMA wal_autocheckpoint

-- name: begin_write_test
-- Dropped again in the same transaction.
CREATE TABLE may_i_write (answer)

-- name: end_write_test
DROP TABLE may_i_write

-- name: live_nodes
-- The nodes of all meshes in the database that have not left, and were heard in their last ten ticks.
SELECT node_id, host, pid FROM mesh_heartbeats
WHERE left_ms IS NULL AND last_seen_ms + max(tick_ms * 10, 60000) > NOW_MS ORDER BY node_id
