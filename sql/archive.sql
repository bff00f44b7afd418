-- The passes of the archive: their progress is kept next to that of retention.

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- name: last_pass
-- When the last pass was complete, and when the last one began.
SELECT attempted_ms, completed_ms FROM retention_progress WHERE OF_MESH AND subject = 'archive'

-- name: begin_pass
-- Before the first complete pass, its time is when archiving began.
INSERT INTO retention_progress (
    scope_id, repository_id, subject, position, pruned, needed, needed_so_far, attempted_ms, completed_ms)
VALUES (?1, ?2, 'archive', 0, 0, 0, 0, NOW_MS, NOW_MS)
ON CONFLICT DO UPDATE SET attempted_ms = NOW_MS

-- name: count
-- ?3: the subject, ?4: how many more.
INSERT INTO retention_progress (
    scope_id, repository_id, subject, position, pruned, needed, needed_so_far, attempted_ms, completed_ms)
VALUES (?1, ?2, ?3, 0, ?4, 0, 0, NOW_MS, NOW_MS)
ON CONFLICT DO UPDATE SET pruned = pruned + ?4, attempted_ms = NOW_MS

-- name: replace
-- ?3: the subject, ?4: its value.
INSERT INTO retention_progress (
    scope_id, repository_id, subject, position, pruned, needed, needed_so_far, attempted_ms, completed_ms)
VALUES (?1, ?2, ?3, 0, ?4, 0, 0, NOW_MS, NOW_MS)
ON CONFLICT DO UPDATE SET pruned = ?4, attempted_ms = NOW_MS, completed_ms = NOW_MS

-- name: end_pass
UPDATE retention_progress SET completed_ms = NOW_MS WHERE OF_MESH AND subject = 'archive'

-- name: position
SELECT position FROM retention_progress WHERE OF_MESH AND subject = ?3

-- name: advance
-- ?3: the subject, ?4: how many more, ?5: the position.
INSERT INTO retention_progress (
    scope_id, repository_id, subject, position, pruned, needed, needed_so_far, attempted_ms, completed_ms)
VALUES (?1, ?2, ?3, ?5, ?4, 0, 0, NOW_MS, NOW_MS)
ON CONFLICT DO UPDATE SET position = ?5, pruned = pruned + ?4, attempted_ms = NOW_MS, completed_ms = NOW_MS
