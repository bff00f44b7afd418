-- Roles: who owns the mesh, and what follows from it.

-- name: owner
SELECT node_id, public_key, op_id FROM mesh_owner WHERE scope_id = ?1 AND repository_id = ?2

-- name: refuse_if_owned
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM mesh_owner WHERE scope_id = ?1 AND repository_id = ?2
)

-- name: own
INSERT INTO mesh_owner (scope_id, repository_id, node_id, public_key, op_id) VALUES (?1, ?2, ?3, ?4, ?5)

-- name: refuse_unless_owner
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM mesh_owner WHERE scope_id = ?1 AND repository_id = ?2 AND public_key = ?3
)

-- name: refuse
INSERT INTO refusals (reason) VALUES ('refused')

-- name: refuse_if_designated_after
-- Nobody was designated since the op that is in force; forged ones, which were told apart before, don't count.
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM agent_oplog INDEXED BY agent_oplog_of_owner
    WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'DesignateCoordinator'
      AND kind IN ('DesignateCoordinator', 'RouteKind', 'RekeyNode', 'Anchor') AND accepted = 1
      AND hlc > ?3 AND op_id NOT IN (SELECT value FROM json_each(?4))
)

-- name: key_request
SELECT public_key, host, pid, requested_ms FROM node_key_requests
WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3

-- name: chains_of
-- Where the chains of a node end: its own, and that of its commands.
SELECT chain.node_id, (
    SELECT coalesce(max(seq), 0) FROM agent_oplog AS o
    WHERE o.scope_id = ?1 AND o.repository_id = ?2 AND o.node_id = chain.node_id
) AS seq
FROM (
    SELECT DISTINCT node_id FROM node_keys
    WHERE scope_id = ?1 AND repository_id = ?2 AND node_id IN (?3, ?4)
) AS chain

-- name: refuse_if_owner
-- What the owner says is believed by its key: another one would make it nobody.
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM mesh_owner WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3
)

-- name: refuse_unless_chains_at
-- The chains have not grown since it was decided from which entry on the new key is in force.
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM json_each(?3) AS chain WHERE chain.value - 1 <> (
        SELECT coalesce(max(seq), 0) FROM agent_oplog AS o
        WHERE o.scope_id = ?1 AND o.repository_id = ?2 AND o.node_id = chain.key
    )
)

-- name: accept_key
INSERT INTO node_keys (scope_id, repository_id, node_id, from_seq, public_key)
SELECT ?1, ?2, chain.key, chain.value, ?4 FROM json_each(?3) AS chain WHERE true
ON CONFLICT DO UPDATE SET public_key = excluded.public_key

-- name: forget_key_request
DELETE FROM node_key_requests WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3
