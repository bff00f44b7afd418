-- Status claims of agents on their tasks: the last of each beat.

-- part: OF_MESH
-- ?1: scope, ?2: repository
scope_id = ?1 AND repository_id = ?2

-- name: put
-- All claims of a node, ?1. Of two claims of one beat the later by its hybrid time wins, in whichever order they
-- arrive. A new claim has a higher serial than all before, so that a reporter sees what came after.
INSERT INTO status_claims (
    scope_id, repository_id, node_id, serial, window_ms, agent_id, task_id, epoch_ms, beat_index, state, wait_for,
    beats_left, progress, notes, overran, began_ms, useful_ms, hlc, since_ms, phase, score,
    batch)
SELECT ?2, ?3, script.value ->> 'node_id', claim.key + 1 + (
        SELECT coalesce(min(max(serial), 9007199254740991), 0) FROM status_claims WHERE scope_id = ?2 AND repository_id = ?3),
    claim.value ->> 0, claim.value ->> 1, claim.value ->> 2, claim.value ->> 3, claim.value ->> 4, claim.value ->> 5,
    claim.value ->> 6, claim.value ->> 7, claim.value ->> 8, claim.value ->> 9, claim.value ->> 10,
    claim.value ->> 11, claim.value ->> 12, claim.value ->> 13, claim.value ->> 14, claim.value ->> 15,
    claim.value ->> 16, script.value ->> 'batch'
FROM json_each(?1) AS script, json_each(script.value ->> 'claims') AS claim WHERE true
ON CONFLICT (scope_id, repository_id, window_ms, agent_id, task_id, epoch_ms) DO UPDATE SET
    node_id = excluded.node_id, serial = excluded.serial, beat_index = excluded.beat_index, state = excluded.state,
    wait_for = excluded.wait_for, beats_left = excluded.beats_left, progress = excluded.progress,
    notes = excluded.notes, overran = max(overran, excluded.overran), began_ms = min(began_ms, excluded.began_ms),
    useful_ms = coalesce(min(useful_ms, excluded.useful_ms), useful_ms, excluded.useful_ms), hlc = excluded.hlc,
    since_ms = excluded.since_ms, phase = excluded.phase, score = excluded.score, batch = excluded.batch
WHERE excluded.hlc > hlc

-- name: sign
-- Store what a node has signed of these claims.
INSERT INTO status_signatures (scope_id, repository_id, batch, node_id, hashes, signature)
SELECT ?2, ?3, script.value ->> 'batch', script.value ->> 'node_id', script.value ->> 'hashes',
    script.value ->> 'signature'
FROM json_each(?1) AS script WHERE script.value ->> 'signature' IS NOT NULL
ON CONFLICT (scope_id, repository_id, batch, node_id) DO NOTHING

-- name: forget
-- The oldest ?4 from before ?3. The newest claim stays: serials continue from it.
DELETE FROM status_claims
WHERE OF_MESH AND window_ms < ?3 AND (window_ms, agent_id, task_id, epoch_ms) IN (
    SELECT window_ms, agent_id, task_id, epoch_ms FROM status_claims
    WHERE OF_MESH AND window_ms < ?3
      AND serial < (SELECT max(serial) FROM status_claims WHERE OF_MESH)
    ORDER BY window_ms LIMIT ?4)

-- name: forget_signatures
-- The oldest ?4 from before ?3.
DELETE FROM status_signatures WHERE OF_MESH AND (batch, node_id) IN (
    SELECT batch, node_id FROM status_signatures WHERE OF_MESH AND batch < ?3 * 1024 ORDER BY batch LIMIT ?4)
