-- Crons: jobs that come again and again. `?1` is the scope, `?2` the repository.

-- part: RECORD
name, expression, timezone, manifest, options, next_ms, last_ms, last_job, added_ms

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- name: add
-- One of this name that is there already stays as it is.
INSERT INTO job_crons (scope_id, repository_id, name, expression, timezone, manifest, options, next_ms, added_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, NOW_MS)
ON CONFLICT DO NOTHING

-- name: find
SELECT RECORD FROM job_crons WHERE OF_MESH AND name = ?3

-- name: listed
SELECT RECORD FROM job_crons WHERE OF_MESH ORDER BY name

-- name: remove
DELETE FROM job_crons WHERE OF_MESH AND name = ?3

-- name: removed
SELECT changes()

-- name: due
SELECT RECORD FROM job_crons INDEXED BY job_crons_due WHERE OF_MESH AND next_ms <= ?3 ORDER BY next_ms LIMIT ?4

-- name: refuse_unless_due
-- ?3: name, ?4: when it was next, ?5: when it was added, ?6: the time that is to be fired. Whoever is first has
-- moved it on; and one that was removed may have come back as another.
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?6 > NOW_MS OR NOT EXISTS (
    SELECT 1 FROM job_crons WHERE OF_MESH AND name = ?3 AND next_ms = ?4 AND added_ms = ?5)

-- name: move_on
-- ?3: name, ?4: the time that was fired, ?5: its job, ?6: the time after it.
UPDATE job_crons SET last_ms = ?4, last_job = ?5, next_ms = ?6 WHERE OF_MESH AND name = ?3
