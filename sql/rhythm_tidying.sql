-- Tidying: what nobody asks for any more. ?3 is before when, ?4 how many at a time.

-- name: help_threads
DELETE FROM help_threads WHERE scope_id = ?1 AND repository_id = ?2 AND thread_id IN (
    SELECT thread_id FROM help_threads
    WHERE scope_id = ?1 AND repository_id = ?2 AND ended_ms IS NOT NULL AND ended_ms < ?3 ORDER BY ended_ms LIMIT ?4)

-- name: phrase_ends
DELETE FROM phrase_ends WHERE scope_id = ?1 AND repository_id = ?2 AND phrase_id IN (
    SELECT phrase_id FROM phrase_ends
    WHERE scope_id = ?1 AND repository_id = ?2 AND window_ms < ?3 ORDER BY window_ms LIMIT ?4)

-- name: phrase_checkpoints
DELETE FROM phrase_checkpoints WHERE scope_id = ?1 AND repository_id = ?2 AND (agent_id, task_id) IN (
    SELECT agent_id, task_id FROM phrase_checkpoints
    WHERE scope_id = ?1 AND repository_id = ?2 AND window_ms < ?3 LIMIT ?4)

-- name: oldest
SELECT
    (SELECT min(ended_ms) FROM help_threads
     WHERE scope_id = ?1 AND repository_id = ?2 AND ended_ms IS NOT NULL) AS help_threads,
    (SELECT min(window_ms) FROM phrase_ends WHERE scope_id = ?1 AND repository_id = ?2) AS phrase_ends,
    (SELECT min(window_ms) FROM phrase_checkpoints
     WHERE scope_id = ?1 AND repository_id = ?2) AS phrase_checkpoints
