-- Rules: jobs that are scheduled when ops are logged. `?1` is the scope, `?2` the repository.

-- from oplog: ENTRY

-- part: RECORD
name, op_kind, fields, manifest, options, position, fired, minute_ms, last_op, last_job, added_ms

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- part: OPS
-- Also the ones that are said to be refused.
agent_oplog INDEXED BY agent_oplog_of_rules WHERE OF_MESH AND kind IN ('AddRule', 'RemoveRule')

-- name: mark
-- Of the ops about rules; NULL: there are none.
SELECT iif(count(*) = 0, NULL, count(*) || ' ' || sum(id & 4294967295) || ' ' || max(hlc)) FROM OPS

-- name: ops
-- After a given time.
SELECT ENTRY FROM OPS AND hlc > ?3 ORDER BY hlc LIMIT ?4

-- name: refuse_if_other
-- There is a rule of this name with another definition.
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM job_rules WHERE OF_MESH AND name = ?3
      AND (op_kind, fields, manifest, options) IS NOT (?4, ?5, ?6, ?7))

-- name: refuse_if_many
-- Besides ?3 there are as many rules as there may be (?4).
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?4 <= (
    SELECT count(*) FROM job_rules WHERE OF_MESH AND name <> ?3)

-- name: refuse_unless_there
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM job_rules WHERE OF_MESH AND name = ?3)

-- name: add
-- For the ops from now on. An existing rule of this name is unchanged.
INSERT INTO job_rules (
    scope_id, repository_id, name, op_kind, fields, manifest, options, position, fired, minute_ms, added_ms
)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7,
    coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'agent_oplog'), 0), 0, NOW_MS, NOW_MS
ON CONFLICT DO NOTHING

-- name: find
SELECT RECORD FROM job_rules WHERE OF_MESH AND name = ?3

-- name: listed
SELECT RECORD FROM job_rules WHERE OF_MESH ORDER BY name

-- name: remove
DELETE FROM job_rules WHERE OF_MESH AND name = ?3

-- name: to_fire
-- The given rules (?3), up to ?4, but for rows with values that no node writes.
SELECT RECORD FROM job_rules
WHERE OF_MESH AND name IN (SELECT value FROM json_each(?3)) AND typeof(position) = 'integer'
  AND typeof(fired) = 'integer' AND typeof(minute_ms) = 'integer' AND typeof(added_ms) = 'integer'
ORDER BY name LIMIT ?4

-- name: refuse_unless_at
-- ?3: name, ?4: its position as read, ?5: when it was added. The first node to fire has advanced it; and a removed
-- rule may have been added again. ?6 and ?7: an entry up to which the log was read, which may have been rolled back.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM job_rules WHERE OF_MESH AND name = ?3 AND position = ?4 AND added_ms = ?5
) OR NOT EXISTS (SELECT 1 FROM agent_oplog WHERE OF_MESH AND id = ?6 AND op_id = ?7)

-- name: advance
-- ?3: name, ?4: the entry that was considered.
UPDATE job_rules SET position = ?4 WHERE OF_MESH AND name = ?3

-- name: advance_and_fire
-- ?5: the op, ?6: its job, ?7: jobs since the minute began, ?8: its beginning.
UPDATE job_rules SET position = ?4, last_op = ?5, last_job = ?6, fired = ?7, minute_ms = ?8
WHERE OF_MESH AND name = ?3
