-- Checkpoints: where a task's work stands, so that whoever takes it up again need not begin anew.

-- name: last
SELECT window_ms, value, hlc FROM phrase_checkpoints
WHERE scope_id = ?1 AND repository_id = ?2 AND agent_id = ?3 AND task_id = ?4

-- name: keep
-- The same in the same bar changes nothing; one that comes late, as from the spool, takes no later one's place.
INSERT INTO phrase_checkpoints (scope_id, repository_id, agent_id, task_id, window_ms, value, hlc)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT (scope_id, repository_id, agent_id, task_id) DO UPDATE
SET window_ms = excluded.window_ms, value = excluded.value, hlc = excluded.hlc
WHERE excluded.hlc > phrase_checkpoints.hlc
  AND (excluded.window_ms <> phrase_checkpoints.window_ms OR excluded.value <> phrase_checkpoints.value)

-- name: forget
-- Of a task that is done; one that was kept later is of its next round.
DELETE FROM phrase_checkpoints
WHERE scope_id = ?1 AND repository_id = ?2 AND agent_id = ?3 AND task_id = ?4 AND hlc < ?5
