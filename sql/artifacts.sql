-- Artifacts: the outputs of jobs, stored once for each content.

-- name: keep
-- ?1: scope, ?2: repository, ?3: the node that has them, ?4: a JSON array of [hash, size, type, body]. An existing
-- content is unchanged; for a file, the last node that stored it is named. That it is used again is noted only once
-- an hour: many jobs have the same output.
INSERT INTO job_artifacts (scope_id, repository_id, node_id, hash, size, type, body, created_ms, used_ms)
SELECT ?1, ?2, ?3, value ->> 0, value ->> 1, value ->> 2, value ->> 3, NOW_MS, NOW_MS FROM json_each(?4) WHERE true
ON CONFLICT (scope_id, repository_id, hash) DO UPDATE SET
    node_id = iif(body IS NULL, excluded.node_id, node_id), body = coalesce(body, excluded.body),
    used_ms = iif(used_ms > excluded.used_ms - 3600000, used_ms, excluded.used_ms)
WHERE body IS NULL AND (node_id <> excluded.node_id OR excluded.body IS NOT NULL)
    OR used_ms IS NULL OR used_ms <= excluded.used_ms - 3600000

-- name: find_inline
-- The contents among these hashes (?3) that are in the database.
SELECT hash, body FROM job_artifacts
WHERE scope_id = ?1 AND repository_id = ?2 AND hash IN (SELECT value FROM json_each(?3)) AND body IS NOT NULL

-- name: find
SELECT size, node_id, body FROM job_artifacts WHERE scope_id = ?1 AND repository_id = ?2 AND hash = ?3

-- --- files that are not needed any more ------------------------------------------------------------------

-- name: note_removals
-- The files among these hashes (?4) that the node ?3 has stored, and that no row names: of attempts that have failed.
INSERT INTO artifact_removals (scope_id, repository_id, hash, node_id, noted_ms)
SELECT ?1, ?2, i.value, ?3, NOW_MS FROM json_each(?4) AS i
WHERE NOT EXISTS (
    SELECT 1 FROM job_artifacts AS a WHERE a.scope_id = ?1 AND a.repository_id = ?2 AND a.hash = i.value)
ON CONFLICT DO UPDATE SET noted_ms = excluded.noted_ms, is_done = 0

-- name: removals
-- Up to ?4 files after ?3, in order.
SELECT DISTINCT hash FROM artifact_removals
WHERE scope_id = ?1 AND repository_id = ?2 AND hash > ?3 ORDER BY hash LIMIT ?4

-- part: MESHES
-- All meshes of this database: they may share a folder.
(SELECT ?1 AS scope_id, ?2 AS repository_id UNION SELECT scope_id, repository_id FROM mesh_owner) AS o

-- name: still_named
-- The hashes (?3) that rows name.
SELECT DISTINCT a.hash FROM MESHES
CROSS JOIN json_each(?3) AS i
CROSS JOIN job_artifacts AS a
    ON a.scope_id = o.scope_id AND a.repository_id = o.repository_id AND a.hash = i.value

-- name: first_start
-- When the first of the attempts was started that run on this machine (?3); 0 if one is not started yet. A claimer that
-- is no member counts as one of this machine.
SELECT min(coalesce(j.started_ms, 0)) FROM MESHES
CROSS JOIN jobs AS j INDEXED BY jobs_held
    ON j.scope_id = o.scope_id AND j.repository_id = o.repository_id AND j.lease_until_ms IS NOT NULL
WHERE NOT EXISTS (
    SELECT 1 FROM mesh_heartbeats AS h
    WHERE h.scope_id = j.scope_id AND h.repository_id = j.repository_id AND h.node_id = j.claimer
      AND h.machine_id <> ?3)

-- name: end_removals
-- The node ?3 has none of these files (?4) any more.
UPDATE artifact_removals SET is_done = 1
WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND hash IN (SELECT value FROM json_each(?4)) AND is_done = 0

-- name: own_removals
-- The hashes among ?4 that the node ?3 is still asked to remove.
SELECT hash FROM artifact_removals
WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND hash IN (SELECT value FROM json_each(?4)) AND is_done = 0
