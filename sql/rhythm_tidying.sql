-- Pruning of the rhythm's old rows. ?3 is before when, ?4 how many at a time.

-- name: help_threads
DELETE FROM help_threads WHERE scope_id = ?1 AND repository_id = ?2 AND thread_id IN (
    SELECT thread_id FROM help_threads
    WHERE scope_id = ?1 AND repository_id = ?2 AND ended_ms IS NOT NULL AND ended_ms < ?3 ORDER BY ended_ms LIMIT ?4)

-- name: phrase_ends
DELETE FROM phrase_ends WHERE scope_id = ?1 AND repository_id = ?2 AND phrase_id IN (
    SELECT phrase_id FROM phrase_ends
    WHERE scope_id = ?1 AND repository_id = ?2 AND window_ms < ?3 ORDER BY window_ms LIMIT ?4)

-- name: job_tallies
DELETE FROM job_tallies WHERE scope_id = ?1 AND repository_id = ?2 AND (window_ms, agent_id, is_scored) IN (
    SELECT window_ms, agent_id, is_scored FROM job_tallies
    WHERE scope_id = ?1 AND repository_id = ?2 AND window_ms < ?3 ORDER BY window_ms LIMIT ?4)

-- name: token_spend
DELETE FROM token_spend
WHERE scope_id = ?1 AND repository_id = ?2 AND (agent_id, window_ms, account, kind, model, currency) IN (
    SELECT agent_id, window_ms, account, kind, model, currency FROM token_spend INDEXED BY token_spend_of_window
    WHERE scope_id = ?1 AND repository_id = ?2 AND window_ms < ?3 ORDER BY window_ms LIMIT ?4)

-- name: phrase_checkpoints
DELETE FROM phrase_checkpoints WHERE scope_id = ?1 AND repository_id = ?2 AND (agent_id, task_id) IN (
    SELECT agent_id, task_id FROM phrase_checkpoints
    WHERE scope_id = ?1 AND repository_id = ?2 AND window_ms < ?3 LIMIT ?4)

-- name: beat_pulses
DELETE FROM beat_pulses WHERE scope_id = ?1 AND repository_id = ?2 AND node_id IN (
    SELECT node_id FROM beat_pulses
    WHERE scope_id = ?1 AND repository_id = ?2 AND CAST(substr(hlc, 1, 13) AS INTEGER) < ?3 LIMIT ?4)

-- name: tempo_policies
-- The policy in effect then stays.
DELETE FROM tempo_policies WHERE scope_id = ?1 AND repository_id = ?2 AND anchor_ms IN (
    SELECT anchor_ms FROM tempo_policies
    WHERE scope_id = ?1 AND repository_id = ?2 AND anchor_ms < (
        SELECT max(anchor_ms) FROM tempo_policies
        WHERE scope_id = ?1 AND repository_id = ?2 AND anchor_ms <= ?3)
    ORDER BY anchor_ms LIMIT ?4)

-- name: oldest
SELECT
    (SELECT min(CAST(substr(hlc, 1, 13) AS INTEGER)) FROM beat_pulses
     WHERE scope_id = ?1 AND repository_id = ?2) AS beat_pulses,
    (SELECT min(anchor_ms) FROM tempo_policies WHERE scope_id = ?1 AND repository_id = ?2) AS tempo_policies,
    (SELECT min(ended_ms) FROM help_threads
     WHERE scope_id = ?1 AND repository_id = ?2 AND ended_ms IS NOT NULL) AS help_threads,
    (SELECT min(window_ms) FROM phrase_ends WHERE scope_id = ?1 AND repository_id = ?2) AS phrase_ends,
    (SELECT min(window_ms) FROM job_tallies WHERE scope_id = ?1 AND repository_id = ?2) AS job_tallies,
    (SELECT min(window_ms) FROM token_spend WHERE scope_id = ?1 AND repository_id = ?2) AS token_spend,
    (SELECT min(window_ms) FROM phrase_checkpoints
     WHERE scope_id = ?1 AND repository_id = ?2) AS phrase_checkpoints

-- name: changed
-- The number of rows that the last statement changed.
SELECT changes()
