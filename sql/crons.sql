-- Crons: recurring jobs. `?1` is the scope, `?2` the repository.

-- part: RECORD
name, expression, timezone, manifest, options, next_ms, last_ms, last_job, added_ms

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- name: add
-- An existing cron of this name is unchanged.
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
-- ?3: name, ?4: its next time as read, ?5: when it was added, ?6: the time to fire. The first node to fire has
-- advanced it; and a removed cron may have been added again.
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?6 > NOW_MS OR NOT EXISTS (
    SELECT 1 FROM job_crons WHERE OF_MESH AND name = ?3 AND next_ms = ?4 AND added_ms = ?5)

-- name: move_on
-- ?3: name, ?4: the fired time, ?5: its job, ?6: the time after it.
UPDATE job_crons SET last_ms = ?4, last_job = ?5, next_ms = ?6 WHERE OF_MESH AND name = ?3
