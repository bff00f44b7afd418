-- What a database has lost, compared with a copy that still has it.

-- name: copy_state
-- What a copy has seen of its primary, of all meshes: the newest log entry, the heartbeats, and the epochs.
SELECT (SELECT id FROM agent_oplog ORDER BY id DESC LIMIT 1),
    (SELECT op_id FROM agent_oplog ORDER BY id DESC LIMIT 1),
    (SELECT json_group_array(json_array(
            CAST(scope_id AS TEXT), CAST(repository_id AS TEXT), CAST(node_id AS TEXT), CAST(beats AS INTEGER))) FROM node_incarnations),
    (SELECT json_group_array(CAST(op_id AS TEXT)) FROM store_epochs)

-- name: is_behind
-- Whether the primary shows less than that.
SELECT ?2 IS NOT (SELECT op_id FROM agent_oplog WHERE id = ?1)
    OR EXISTS (SELECT 1 FROM store_epochs WHERE op_id NOT IN (SELECT value FROM json_each(?4)))
    OR EXISTS (
        SELECT 1 FROM json_each(?3) AS seen LEFT JOIN node_incarnations AS i
            ON i.scope_id = seen.value ->> 0 AND i.repository_id = seen.value ->> 1
            AND i.node_id = seen.value ->> 2
        WHERE coalesce(i.beats, -1) < seen.value ->> 3)
