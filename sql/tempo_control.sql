-- Tempo control: its decisions are in the log; an incident freezes it.

-- from oplog: ENTRY

-- name: decisions
-- The last ?3 accepted ones, newest first.
SELECT ENTRY FROM agent_oplog INDEXED BY agent_oplog_of_tempo
WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'TempoDecision' AND accepted = 1
ORDER BY id DESC LIMIT ?3

-- part: INCIDENT
-- The columns of an incident. The time stays within the years that can be shown, also if no node wrote the row.
substr(CAST(reason AS TEXT), 1, 500), min(max(CAST(declared_ms AS INTEGER), 0), 253402300799999),
CAST(node_id AS TEXT), CAST(agent_id AS TEXT), CAST(op_id AS TEXT)

-- name: incident
SELECT INCIDENT FROM tempo_incidents
WHERE scope_id = ?1 AND repository_id = ?2

-- name: declare_incident
-- A second declaration changes the reason and its author; the incident began with the first.
INSERT INTO tempo_incidents (scope_id, repository_id, reason, declared_ms, node_id, agent_id, op_id)
VALUES (?1, ?2, ?3, NOW_MS, ?4, ?5, ?6)
ON CONFLICT (scope_id, repository_id) DO UPDATE SET
    reason = excluded.reason, node_id = excluded.node_id, agent_id = excluded.agent_id, op_id = excluded.op_id

-- name: clear_incident
DELETE FROM tempo_incidents WHERE scope_id = ?1 AND repository_id = ?2

-- name: refuse_if_incident
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM tempo_incidents WHERE scope_id = ?1 AND repository_id = ?2)
