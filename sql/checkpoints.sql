-- Checkpoints: the state of a task, so that the next attempt can resume from it.

-- name: last
SELECT window_ms, value, hlc FROM phrase_checkpoints
WHERE scope_id = ?1 AND repository_id = ?2 AND agent_id = ?3 AND task_id = ?4

-- name: keep
-- Idempotent within a bar; a late one, as from the spool, does not replace a later one.
INSERT INTO phrase_checkpoints (scope_id, repository_id, agent_id, task_id, window_ms, value, hlc)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (scope_id, repository_id, agent_id, task_id) DO UPDATE
SET window_ms = excluded.window_ms, value = excluded.value, hlc = excluded.hlc
WHERE excluded.hlc > phrase_checkpoints.hlc
  AND (excluded.window_ms <> phrase_checkpoints.window_ms OR excluded.value <> phrase_checkpoints.value)

-- name: forget
-- Of a finished task; a later checkpoint belongs to its next run.
DELETE FROM phrase_checkpoints
WHERE scope_id = ?1 AND repository_id = ?2 AND agent_id = ?3 AND task_id = ?4 AND hlc < ?5
