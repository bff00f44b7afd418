-- Grants: which agents are admitted, what they were granted, and whether a write is allowed by that.
--
-- The rows follow the signed ops of the log, in the same transactions. They decide whether a grant is in force when a
-- write is committed; what a grant allows is read from the log, where it is signed.

-- from oplog: ENTRY

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- part: WITHOUT_GRANT
-- The agent `agent` may act through the node `node` without a grant: neither it nor all agents are admitted, or the node
-- is the owner and acts itself or for a person. People act with the rights of the node.
NOT EXISTS (
    SELECT 1 FROM admitted_agents
    WHERE scope_id = scope AND repository_id = repository AND agent_id IN (agent, '*')
      AND ((agent = node OR (agent_id = '*' AND agent GLOB 'person:*'))
        AND node = (SELECT node_id FROM mesh_owner WHERE scope_id = scope AND repository_id = repository)) IS NOT TRUE)

-- part: AGENT_WITHOUT_GRANT
-- The same for an agent that is neither the node nor a person.
NOT EXISTS (
    SELECT 1 FROM admitted_agents
    WHERE scope_id = scope AND repository_id = repository AND agent_id IN (agent, '*'))

-- part: NODE_WITHOUT_GRANT
-- The same for a node that acts itself.
NOT EXISTS (
    SELECT 1 FROM admitted_agents
    WHERE scope_id = scope AND repository_id = repository AND agent_id IN (agent, '*')
      AND node IS NOT (SELECT node_id FROM mesh_owner WHERE scope_id = scope AND repository_id = repository))

-- part: ALL_WITHOUT_GRANT
-- The same as the first for each of several rows. Where no agent is admitted, that is looked up once for all of them.
(NOT EXISTS (SELECT 1 FROM admitted_agents WHERE scope_id = scope AND repository_id = repository) OR WITHOUT_GRANT)

-- part: GRANTED
-- The agent may act by the grant `by_grant` or, if that is null, without one; if it is empty, the mesh itself acts. To
-- use it, bind these names, and `scope` and `repository`, to any expressions:
-- `(SELECT GRANTED FROM (SELECT ?1 AS scope, …))`.
CASE WHEN by_grant IS NULL THEN WITHOUT_GRANT
WHEN by_grant = '' THEN 1
ELSE EXISTS (
    SELECT 1 FROM grants
    WHERE scope_id = scope AND repository_id = repository AND grant_id = by_grant AND agent_id = agent
      AND from_ms <= NOW_MS AND (until_ms IS NULL OR until_ms > NOW_MS))
END

-- name: refuse_if_many_agents
-- Besides ?3, as many agents are admitted as may be (?4).
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?4 <= (
    SELECT count(*) FROM admitted_agents WHERE OF_MESH AND agent_id NOT IN (?3, '*'))

-- name: admit
INSERT INTO admitted_agents (scope_id, repository_id, agent_id, public_key, op_id) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT DO UPDATE SET public_key = excluded.public_key, op_id = excluded.op_id

-- name: set_trusting
-- The row of all agents is what makes a mesh strict.
DELETE FROM admitted_agents WHERE OF_MESH AND agent_id = '*'

-- name: admit_node
INSERT INTO admitted_nodes (scope_id, repository_id, node_id, public_key) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT DO UPDATE SET public_key = excluded.public_key

-- name: refuse_if_known_otherwise
-- The node ?3 is known with another key than ?4.
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?4 <> (
    SELECT public_key FROM node_keys WHERE OF_MESH AND node_id = ?3 ORDER BY from_seq DESC LIMIT 1)

-- name: refuse_if_many_nodes
-- Besides ?3, as many nodes are admitted as may be (?4).
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?4 <= (
    SELECT count(*) FROM admitted_nodes WHERE OF_MESH AND node_id <> ?3)

-- name: fence_unadmitted
-- The running processes of nodes that are not admitted can write no more.
UPDATE node_incarnations SET
    incarnation = min(incarnation, 9007199254740991) + 1, beats = min(beats, 9007199254740991) + 1
WHERE OF_MESH AND node_id NOT IN (
    SELECT node_id FROM admitted_nodes WHERE OF_MESH UNION ALL SELECT node_id FROM mesh_owner WHERE OF_MESH)


-- name: grant
INSERT INTO grants (scope_id, repository_id, grant_id, agent_id, parent_id, from_ms, until_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)

-- name: refuse_unless_admitted
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM admitted_agents WHERE OF_MESH AND agent_id = ?3 AND public_key IS ?4)

-- name: refuse_unless_delegable
-- The grant ?3 is in force, and has fewer than ?4 delegations in force.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM grants WHERE OF_MESH AND grant_id = ?3 AND (until_ms IS NULL OR until_ms > NOW_MS))
   OR ?4 <= (
    SELECT count(*) FROM grants
    WHERE OF_MESH AND parent_id = ?3 AND (until_ms IS NULL OR until_ms > NOW_MS))

-- name: refuse_unless_granted
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM grants WHERE OF_MESH AND grant_id = ?3)

-- name: revoke
-- With all that was delegated from it. The log keeps them.
DELETE FROM grants WHERE OF_MESH AND grant_id IN (
    WITH RECURSIVE ended (grant_id) AS (
        SELECT ?3
        UNION SELECT g.grant_id FROM ended CROSS JOIN grants AS g INDEXED BY grants_of_parent
            ON g.scope_id = ?1 AND g.repository_id = ?2 AND g.parent_id = ended.grant_id)
    SELECT grant_id FROM ended)

-- name: refuse_if_short
-- What ends at ?3, or never, lasts less than ?4 milliseconds from now.
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?3 < NOW_MS + ?4

-- name: refuse_if_many_delegations
-- The agent of the grant ?3 has made as many delegations as it may (?4) that are in force or not pruned yet.
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?4 <= (
    SELECT count(*) FROM grants AS p CROSS JOIN grants AS d INDEXED BY grants_of_parent
        ON d.scope_id = ?1 AND d.repository_id = ?2 AND d.parent_id = p.grant_id
    WHERE p.scope_id = ?1 AND p.repository_id = ?2
      AND p.agent_id = (SELECT g.agent_id FROM grants AS g
          WHERE g.scope_id = ?1 AND g.repository_id = ?2 AND g.grant_id = ?3))

-- name: prune
-- Grants that ended ?4 milliseconds ago or earlier, at most ?3 of them. The log keeps them.
DELETE FROM grants WHERE OF_MESH AND grant_id IN (
    SELECT grant_id FROM grants INDEXED BY grants_by_end
    WHERE OF_MESH AND until_ms IS NOT NULL AND until_ms <= NOW_MS - ?4 LIMIT ?3)

-- name: refuse_without_grant
-- The agent ?5 acts through the node ?4, by the grant ?3 or, if that is null, without one. The last value is one that
-- each form of the condition uses.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT (SELECT GRANTED FROM (
    SELECT ?1 AS scope, ?2 AS repository, ?5 AS agent, ?4 AS node, ?3 AS by_grant))

-- name: is_in_use
SELECT EXISTS (SELECT 1 FROM admitted_agents WHERE OF_MESH)

-- name: ops
-- The ops about grants after the entry ?3, in the order of their commits.
SELECT ENTRY FROM agent_oplog INDEXED BY agent_oplog_of_grants
WHERE OF_MESH AND kind IN ('AdmitAgent', 'Grant', 'Delegate', 'Revoke', 'SetStrict') AND id > ?3
ORDER BY id LIMIT ?4
