-- Crons: recurring jobs. `?1` is the scope, `?2` the repository.

-- from oplog: ENTRY

-- part: RECORD
name, expression, timezone, manifest, options, next_ms, last_ms, last_job, added_ms

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- part: OPS
-- Also the ones that are said to be refused.
agent_oplog INDEXED BY agent_oplog_of_crons
WHERE OF_MESH AND kind IN ('AddCron', 'RemoveCron', 'AdoptCrons')

-- name: mark
-- Of the ops about crons; NULL: there are none.
SELECT iif(count(*) = 0, NULL, count(*) || ' ' || sum(id & 4294967295) || ' ' || max(hlc)) FROM OPS

-- name: ops
-- After a given time.
SELECT ENTRY FROM OPS AND hlc > ?3 ORDER BY hlc LIMIT ?4

-- name: refuse_if_other
-- There is a cron of this name with another definition.
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM job_crons WHERE OF_MESH AND name = ?3
      AND (expression, timezone, manifest, options) IS NOT (?4, ?5, ?6, ?7))

-- name: refuse_unless_there
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM job_crons WHERE OF_MESH AND name = ?3)

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

-- name: due
-- Among given crons (?5).
SELECT RECORD FROM job_crons INDEXED BY job_crons_due
WHERE OF_MESH AND next_ms <= ?3 AND name IN (SELECT value FROM json_each(?5)) ORDER BY next_ms LIMIT ?4

-- name: due_without_op
-- Up to ?4 others than given crons (?5).
SELECT name FROM job_crons INDEXED BY job_crons_due
WHERE OF_MESH AND next_ms <= ?3 AND typeof(name) = 'text' AND name NOT IN (SELECT value FROM json_each(?5)) LIMIT ?4

-- name: in_bars
SELECT RECORD FROM job_crons WHERE OF_MESH AND expression LIKE 'every %' ORDER BY name

-- name: refuse_unless_due
-- ?3: name, ?4: its next time as read, ?5: when it was added, ?6: the time to fire. The first node to fire has
-- advanced it; and a removed cron may have been added again.
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?6 > NOW_MS OR NOT EXISTS (
    SELECT 1 FROM job_crons WHERE OF_MESH AND name = ?3 AND next_ms = ?4 AND added_ms = ?5)

-- name: move_on
-- ?3: name, ?4: the fired time, ?5: its job, ?6: the time after it.
UPDATE job_crons SET last_ms = ?4, last_job = ?5, next_ms = ?6 WHERE OF_MESH AND name = ?3

-- name: correct
-- ?3: name, ?4: its next time.
UPDATE job_crons SET next_ms = ?4 WHERE OF_MESH AND name = ?3
