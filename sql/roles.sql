-- Roles: the owner of the mesh, and its decisions.

-- name: owner
SELECT node_id, public_key, op_id FROM mesh_owner WHERE scope_id = ?1 AND repository_id = ?2

-- name: refuse_if_owned
-- ?3: the op that a recorded owner names, if the log does not have it: then the row proves nothing.
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM mesh_owner WHERE scope_id = ?1 AND repository_id = ?2 AND op_id IS NOT ?3
)

-- name: become_owner
INSERT INTO mesh_owner (scope_id, repository_id, node_id, public_key, op_id) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT DO UPDATE SET node_id = excluded.node_id, public_key = excluded.public_key, op_id = excluded.op_id

-- name: refuse
INSERT INTO refusals (reason) VALUES ('refused')

-- name: refuse_if_designated_after
-- There was no designation since the op in effect; forged ones, which were identified before, don't count.
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
-- The ends of a node's chains: its own, and that of its commands.
SELECT chain.node_id, (
    SELECT coalesce(max(seq), 0) FROM agent_oplog AS o
    WHERE o.scope_id = ?1 AND o.repository_id = ?2 AND o.node_id = chain.node_id
) AS seq
FROM (
    SELECT DISTINCT node_id FROM node_keys
    WHERE scope_id = ?1 AND repository_id = ?2 AND node_id IN (?3, ?4)
) AS chain

-- name: ends_of
-- The numbers of the last entries of two chains.
SELECT
    (SELECT coalesce(max(seq), 0) FROM agent_oplog
        WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3) AS own,
    (SELECT coalesce(max(seq), 0) FROM agent_oplog
        WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?4) AS commands

-- name: refuse_unless_chains_at
-- The chains have not grown since the entry was chosen from which on the new key applies.
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
