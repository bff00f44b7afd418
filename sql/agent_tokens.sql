-- Tokens of agents: the ones that are in force. What they are is signed in the log.

-- from oplog: ENTRY

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- name: prune
-- Tokens that have ended, at most ?3 of them. The log keeps their ops.
DELETE FROM agent_tokens WHERE OF_MESH AND token_id IN (
    SELECT token_id FROM agent_tokens WHERE OF_MESH AND until_ms <= NOW_MS LIMIT ?3)

-- name: refuse_if_many
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?3 <= (SELECT count(*) FROM agent_tokens WHERE OF_MESH)

-- name: refuse_unless_admitted
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM admitted_agents WHERE OF_MESH AND agent_id = ?3)

-- name: issue
INSERT INTO agent_tokens (scope_id, repository_id, token_id, agent_id, digest, until_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)

-- name: refuse_unless_issued
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM agent_tokens WHERE OF_MESH AND token_id = ?3)

-- name: revoke
DELETE FROM agent_tokens WHERE OF_MESH AND token_id = ?3

-- name: in_force
SELECT token_id, agent_id, digest, until_ms FROM agent_tokens WHERE OF_MESH ORDER BY token_id LIMIT ?3

-- name: op
SELECT ENTRY FROM agent_oplog WHERE OF_MESH AND op_id = ?3
