-- Artifacts: the outputs of jobs, stored once for each content.

-- name: keep
-- ?1: scope, ?2: repository, ?3: the node that has them, ?4: a JSON array of [hash, size, type, body]. An existing
-- content is unchanged; for a file, the last node that stored it is named.
INSERT INTO job_artifacts (scope_id, repository_id, node_id, hash, size, type, body, created_ms)
SELECT ?1, ?2, ?3, value ->> 0, value ->> 1, value ->> 2, value ->> 3, NOW_MS FROM json_each(?4) WHERE true
ON CONFLICT (scope_id, repository_id, hash) DO UPDATE SET node_id = excluded.node_id, body = excluded.body
WHERE body IS NULL AND (node_id <> excluded.node_id OR excluded.body IS NOT NULL)

-- name: find_inline
-- The contents among these hashes (?3) that are in the database.
SELECT hash, body FROM job_artifacts
WHERE scope_id = ?1 AND repository_id = ?2 AND hash IN (SELECT value FROM json_each(?3)) AND body IS NOT NULL

-- name: find
SELECT size, node_id, body FROM job_artifacts WHERE scope_id = ?1 AND repository_id = ?2 AND hash = ?3
