-- Tempo: the announced policies, and the one that each node uses.

-- name: entries
SELECT document, tempo_bpm, bar_len_beats, anchor_ms, first_bar, reason, op_id, hlc, announced_ms
FROM tempo_policies WHERE scope_id = ?1 AND repository_id = ?2 ORDER BY anchor_ms

-- name: extent
-- Whether anything has changed since the last query.
SELECT count(*), max(anchor_ms), max(hlc) FROM tempo_policies WHERE scope_id = ?1 AND repository_id = ?2

-- name: refuse_if_announced_after
-- Nothing was announced since the decision was made.
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM tempo_policies WHERE scope_id = ?1 AND repository_id = ?2 AND anchor_ms > ?3
)

-- part: SOMEBODY_LIVES
EXISTS (
    SELECT 1 FROM mesh_heartbeats
    WHERE scope_id = ?1 AND repository_id = ?2 AND left_ms IS NULL AND last_seen_ms + spare_ms > NOW_MS - ?3 * tick_ms
)

-- name: is_any_node_live
SELECT SOMEBODY_LIVES

-- name: refuse_if_late
-- ?4 is the anchor, and ?5 how long before it all live nodes must be able to know.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOW_MS + ?5 > ?4 AND SOMEBODY_LIVES

-- name: announce
INSERT INTO tempo_policies (
    scope_id, repository_id, anchor_ms, policy_hash, cluster_id, tempo_bpm, bar_len_beats, first_bar, document,
    reason, op_id, hlc, announced_ms
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
ON CONFLICT DO NOTHING  -- it exists; or it did, and was lost with a rollback of the database

-- name: record_pulse
INSERT INTO beat_pulses (
    scope_id, repository_id, node_id, document, tempo_bpm, bar_len_beats, anchor_ms, hlc
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (scope_id, repository_id, node_id) DO UPDATE SET
    document = excluded.document, tempo_bpm = excluded.tempo_bpm, bar_len_beats = excluded.bar_len_beats,
    anchor_ms = excluded.anchor_ms, hlc = excluded.hlc
WHERE excluded.hlc > beat_pulses.hlc

-- name: pulses
SELECT node_id, document, tempo_bpm, bar_len_beats, anchor_ms FROM beat_pulses
WHERE scope_id = ?1 AND repository_id = ?2 ORDER BY node_id
