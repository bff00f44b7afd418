-- A restore: begun, advanced and ended in separate transactions. While `unfinished_restore` exists, the database
-- holds a part of a backup, and only a restore of the same file may use it.

-- name: is_unfinished
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'unfinished_restore'

-- name: progress
SELECT fingerprint, rows_done FROM unfinished_restore

-- name: create_progress
CREATE TABLE unfinished_restore (fingerprint TEXT NOT NULL, rows_done INTEGER NOT NULL)

-- name: begin
INSERT INTO unfinished_restore (fingerprint, rows_done) VALUES (?, 0)

-- name: block_opening
-- A version that no code is new enough for: every process that opens the database meanwhile is refused.
INSERT INTO mesh_schema (version, oldest_code) VALUES (?1, ?1)

-- name: refuse_unless_at
-- So that a part which is sent twice, or by two restores, is applied once.
INSERT INTO refusals (reason) SELECT 'refused'
WHERE NOT EXISTS (SELECT 1 FROM unfinished_restore WHERE fingerprint = ? AND rows_done = ?)

-- name: advance
UPDATE unfinished_restore SET rows_done = rows_done + ?

-- name: raise_fences
-- Tokens issued after the backup are unknown here: no new one may repeat them.
UPDATE lock_generations SET generation = min(generation, 9007199254740991) + 4294967296

-- name: raise_tokens
-- These are not held any more: a holder at the time of the backup must acquire its lock again.
UPDATE distributed_locks SET fence_token = min(fence_token, 9007199254740991) + 4294967296

-- name: forget_shares
DELETE FROM lock_shares

-- name: raise_incarnations
-- One backup may be restored twice: the count of heartbeats carries the time, and distinguishes the two.
UPDATE node_incarnations
SET incarnation = min(incarnation, 9007199254740991) + 4294967296,
    beats = max(min(beats, 9007199254740991) + 1048576, NOW_MS << 10)

-- name: begin_epochs
-- ?1: its id. Nodes that knew the database before the restore rejoin.
INSERT INTO store_epochs (scope_id, repository_id, epoch, op_id, node_id, detected_ms, detail)
SELECT scope_id, repository_id, min(max(epoch), 9007199254740991) + 1, ?1, '', NOW_MS, '{}' FROM store_epochs
GROUP BY scope_id, repository_id

-- name: unblock_opening
DELETE FROM mesh_schema WHERE version = ?

-- name: end
DROP TABLE unfinished_restore
