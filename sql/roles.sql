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
-- The ends of a node's chains, its own and that of its commands: the last entry before a gap, since those after it
-- were planted. Number 0: it has no entry. `is_known`: the node has a key. ?5: what was deleted, each a chain, the first
-- number and the last.
SELECT chain.node_id, chain.seq, o.hash, EXISTS (
    SELECT 1 FROM node_keys WHERE scope_id = ?1 AND repository_id = ?2 AND node_id IN (?3, ?4)) AS is_known
FROM (
    SELECT chains.value AS node_id, coalesce((
        SELECT e.seq FROM agent_oplog AS e
        WHERE e.scope_id = ?1 AND e.repository_id = ?2 AND e.node_id = chains.value AND e.seq >= 1 AND NOT EXISTS (
            SELECT 1 FROM agent_oplog AS n
            WHERE n.scope_id = ?1 AND n.repository_id = ?2 AND n.node_id = chains.value AND n.seq = e.seq + 1)
          AND NOT EXISTS (
            SELECT 1 FROM json_each(?5) AS d WHERE d.value ->> 0 = chains.value
              AND e.seq + 1 BETWEEN d.value ->> 1 AND d.value ->> 2)
          AND EXISTS (
            SELECT 1 FROM agent_oplog AS f
            WHERE f.scope_id = ?1 AND f.repository_id = ?2 AND f.node_id = chains.value AND f.seq = 1)
        ORDER BY e.seq LIMIT 1), 0) AS seq
    FROM json_each(json_array(?3, ?4)) AS chains
) AS chain
LEFT JOIN agent_oplog AS o
    ON o.scope_id = ?1 AND o.repository_id = ?2 AND o.node_id = chain.node_id AND o.seq = chain.seq

-- name: ends_of
-- The numbers of the last entries of two chains.
SELECT
    (SELECT coalesce(max(seq), 0) FROM agent_oplog
        WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3) AS own,
    (SELECT coalesce(max(seq), 0) FROM agent_oplog
        WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?4) AS commands

-- name: mail_of
-- The number of the last message of all, and the signatures of a node's messages that can still be delivered, the
-- waiting ones first. ?4: how many. At least one row. As bytes, since a row may hold text that is not UTF-8.
SELECT coalesce((SELECT max(id) FROM a2a_messages), 0) AS last_id, CAST(m.signature AS BLOB) AS signature
FROM (SELECT 1) LEFT JOIN (
    SELECT * FROM (
        SELECT id, 0 AS is_dead, signature FROM a2a_messages
        WHERE scope_id = ?1 AND repository_id = ?2 AND sender_node = ?3 AND ended_ms IS NULL
        UNION ALL
        SELECT id, 1, signature FROM a2a_messages
        WHERE scope_id = ?1 AND repository_id = ?2 AND sender_node = ?3 AND state = 'dead' AND ended_ms IS NOT NULL
    )
    WHERE length(signature) < 4096 ORDER BY is_dead, id LIMIT ?4
) AS m

-- name: refuse_unless_chains_end
-- The chains have not grown or changed since the entry was chosen from which on the new key applies. ?3: their ends.
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM json_each(?3) AS chain WHERE EXISTS (
        SELECT 1 FROM agent_oplog AS o
        WHERE o.scope_id = ?1 AND o.repository_id = ?2 AND o.node_id = chain.key AND o.seq = (chain.value ->> 0) + 1
    ) OR chain.value ->> 0 > 0 AND chain.value ->> 1 IS NOT (
        SELECT hash FROM agent_oplog AS o
        WHERE o.scope_id = ?1 AND o.repository_id = ?2 AND o.node_id = chain.key AND o.seq = chain.value ->> 0
    )
)

-- name: refuse_if_sent_after
-- The node has sent no message since the one with the number ?4.
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM a2a_messages
    WHERE id > ?4 AND +scope_id = ?1 AND +repository_id = ?2 AND sender_node = ?3
)

-- name: accept_key
INSERT INTO node_keys (scope_id, repository_id, node_id, from_seq, public_key)
SELECT ?1, ?2, chain.key, chain.value, ?4 FROM json_each(?3) AS chain WHERE true
ON CONFLICT DO UPDATE SET public_key = excluded.public_key

-- name: forget_key_request
DELETE FROM node_key_requests WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3
