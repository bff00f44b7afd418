-- Status claims: what agents said of their tasks, the last of each beat.

-- part: OF_MESH
-- ?1: scope, ?2: repository
scope_id = ?1 AND repository_id = ?2

-- name: put
-- All that a node (?3) has to say. Of two claims of one beat the later by its hybrid time stands. What comes in has
-- a higher serial than all before, so that whoever reports on a bar sees what came after.
INSERT INTO status_claims (
    scope_id, repository_id, node_id, serial, window_ms, agent_id, task_id, epoch_ms, beat_index, state, wait_for,
    beats_left, progress, notes, overran, began_ms, useful_ms, hlc)
SELECT ?1, ?2, ?3, (SELECT coalesce(max(serial), 0) FROM status_claims WHERE OF_MESH) + key + 1,
    value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
    value ->> 8, value ->> 9, value ->> 10, value ->> 11, value ->> 12, value ->> 13
FROM json_each(?4) WHERE true
ON CONFLICT (scope_id, repository_id, window_ms, agent_id, task_id, epoch_ms) DO UPDATE SET
    node_id = excluded.node_id, serial = excluded.serial, beat_index = excluded.beat_index, state = excluded.state,
    wait_for = excluded.wait_for, beats_left = excluded.beats_left, progress = excluded.progress,
    notes = excluded.notes, overran = max(overran, excluded.overran), began_ms = min(began_ms, excluded.began_ms),
    useful_ms = coalesce(min(useful_ms, excluded.useful_ms), useful_ms, excluded.useful_ms), hlc = excluded.hlc
WHERE excluded.hlc > hlc

-- name: forget
-- The oldest ?4 from before ?3. The last that came stays: serials go on from it.
DELETE FROM status_claims
WHERE OF_MESH AND window_ms < ?3 AND (window_ms, agent_id, task_id, epoch_ms) IN (
    SELECT window_ms, agent_id, task_id, epoch_ms FROM status_claims
    WHERE OF_MESH AND window_ms < ?3
      AND serial < (SELECT max(serial) FROM status_claims WHERE OF_MESH)
    ORDER BY window_ms LIMIT ?4)
