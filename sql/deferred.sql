-- Ops that wait for others. A forged entry may hold anything: dependencies that are not JSON are ignored.

-- name: standing_of
-- The state of each of these ops: applied, deferred, dropped, refused or absent.
SELECT dep.value AS op_id, entry.hlc AS hlc, CASE
    WHEN entry.op_id IS NULL THEN 'absent'
    WHEN entry.accepted = 0 THEN 'refused'
    WHEN waiting.op_id IS NULL THEN 'applied'
    WHEN waiting.dropped IS NULL THEN 'deferred'
    ELSE 'dropped'
END AS standing
FROM json_each(?3) AS dep
LEFT JOIN agent_oplog AS entry
    ON entry.scope_id = ?1 AND entry.repository_id = ?2 AND entry.op_id = dep.value
LEFT JOIN deferred_ops AS waiting
    ON waiting.scope_id = ?1 AND waiting.repository_id = ?2 AND waiting.op_id = dep.value

-- name: refuse_unless_applied
-- All of these ops were applied when their author read them; but the database may have been rolled back since.
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM json_each(?3) AS dep WHERE NOT EXISTS (
        SELECT 1 FROM agent_oplog AS entry
        WHERE entry.scope_id = ?1 AND entry.repository_id = ?2 AND entry.op_id = dep.value AND entry.accepted))

-- name: refuse_cycle
-- An op that waits for itself, directly or through others that wait.
WITH RECURSIVE reach (op_id) AS (
    SELECT value FROM json_each(?4)
    UNION
    SELECT dep.value FROM reach
    JOIN deferred_ops AS waiting
        ON waiting.scope_id = ?1 AND waiting.repository_id = ?2 AND waiting.op_id = reach.op_id
    JOIN json_each(iif(json_valid(waiting.causal_deps), waiting.causal_deps, '[]')) AS dep
)
INSERT INTO refusals (reason) SELECT 'refused' FROM reach WHERE op_id = ?3

-- name: defer
INSERT INTO deferred_ops (scope_id, repository_id, op_id, causal_deps) VALUES (?1, ?2, ?3, ?4)

-- name: all
SELECT waiting.op_id, waiting.dropped, entry.node_id, entry.kind,
    iif(json_valid(entry.causal_deps), entry.causal_deps, '[]') AS causal_deps
FROM deferred_ops AS waiting JOIN agent_oplog AS entry
    ON entry.scope_id = ?1 AND entry.repository_id = ?2 AND entry.op_id = waiting.op_id
WHERE waiting.scope_id = ?1 AND waiting.repository_id = ?2 ORDER BY entry.id LIMIT ?3

-- name: one
SELECT waiting.op_id, waiting.dropped, entry.node_id, entry.kind,
    iif(json_valid(entry.causal_deps), entry.causal_deps, '[]') AS causal_deps
FROM deferred_ops AS waiting JOIN agent_oplog AS entry
    ON entry.scope_id = ?1 AND entry.repository_id = ?2 AND entry.op_id = waiting.op_id
WHERE waiting.scope_id = ?1 AND waiting.repository_id = ?2 AND waiting.op_id = ?3

-- name: is_any_waiting
SELECT EXISTS (SELECT 1 FROM deferred_ops WHERE scope_id = ?1 AND repository_id = ?2 AND dropped IS NULL)

-- name: decided
-- Ops of known kinds that wait for nothing any more: each of their dependencies was applied, refused or dropped.
SELECT waiting.op_id FROM deferred_ops AS waiting JOIN agent_oplog AS entry
    ON entry.scope_id = ?1 AND entry.repository_id = ?2 AND entry.op_id = waiting.op_id
WHERE waiting.scope_id = ?1 AND waiting.repository_id = ?2 AND waiting.dropped IS NULL
AND entry.kind IN (SELECT value FROM json_each(?4)) AND NOT EXISTS (
    SELECT 1 FROM json_each(iif(json_valid(entry.causal_deps), entry.causal_deps, '[]')) AS dep
    WHERE NOT EXISTS (
        SELECT 1 FROM agent_oplog AS other
        WHERE other.scope_id = ?1 AND other.repository_id = ?2 AND other.op_id = dep.value
    ) OR EXISTS (
        SELECT 1 FROM deferred_ops AS other
        WHERE other.scope_id = ?1 AND other.repository_id = ?2 AND other.op_id = dep.value
          AND other.dropped IS NULL
    )
) ORDER BY entry.id LIMIT ?3

-- name: refuse_unless_waiting
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM deferred_ops WHERE scope_id = ?1 AND repository_id = ?2 AND op_id = ?3 AND dropped IS NULL
)

-- name: applied
DELETE FROM deferred_ops WHERE scope_id = ?1 AND repository_id = ?2 AND op_id = ?3

-- name: drop
UPDATE deferred_ops SET dropped = ?4 WHERE scope_id = ?1 AND repository_id = ?2 AND op_id = ?3
