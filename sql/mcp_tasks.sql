-- Tasks of MCP clients. `?1` is the scope, `?2` the repository.

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- part: JOB_OF
jobs AS j ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id

-- name: record
-- The tasks of the agent ?4: pairs of a job that the op ?3 has just scheduled, and a hash, in ?5.
INSERT INTO mcp_tasks (scope_id, repository_id, task_hash, job_id, agent_id, created_ms)
SELECT ?1, ?2, t.value ->> 1, j.job_id, ?4, NOW_MS
FROM json_each(?5) AS t CROSS JOIN JOB_OF = t.value ->> 0 AND j.last_op = ?3
WHERE true
ON CONFLICT (scope_id, repository_id, task_hash) DO NOTHING  -- it has waited for an approval

-- name: refuse_unless_recorded
-- A job that existed before has no new task: the op that scheduled it does not name one.
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM json_each(?5) AS t WHERE NOT EXISTS (
        SELECT 1 FROM mcp_tasks AS m CROSS JOIN JOB_OF = m.job_id AND j.last_op = ?3
        WHERE m.scope_id = ?1 AND m.repository_id = ?2 AND m.task_hash = t.value ->> 1 AND m.job_id = t.value ->> 0))

-- name: record_asked
-- The task ?3 of a job ?4 that the agent ?5 may schedule after the approval ?6 only.
INSERT INTO mcp_tasks (scope_id, repository_id, task_hash, job_id, agent_id, approval_id, created_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, NOW_MS)
ON CONFLICT (scope_id, repository_id, task_hash) DO UPDATE SET approval_id = excluded.approval_id

-- name: make_room
-- Of more than ?4 tasks of the agent ?3, the oldest go whose jobs have ended.
DELETE FROM mcp_tasks WHERE OF_MESH AND task_hash IN (
    SELECT m.task_hash FROM mcp_tasks AS m CROSS JOIN JOB_OF = m.job_id AND j.ended_ms IS NOT NULL
    WHERE m.scope_id = ?1 AND m.repository_id = ?2 AND m.agent_id = ?3
    ORDER BY m.created_ms
    LIMIT max(0, (SELECT count(*) FROM mcp_tasks WHERE OF_MESH AND agent_id = ?3) - ?4))

-- name: refuse_if_many
INSERT INTO refusals (reason) SELECT 'refused'
WHERE (SELECT count(*) FROM mcp_tasks WHERE OF_MESH AND agent_id = ?3) > ?4

-- name: find
SELECT job_id, approval_id, created_ms FROM mcp_tasks WHERE OF_MESH AND task_hash = ?3

-- part: IS_OVER
-- Whether the job of a task ended before ?3, or there is none and the task is older than that.
(SELECT coalesce(max(j.ended_ms IS NOT NULL AND j.ended_ms < ?3), 1) FROM jobs AS j
 WHERE j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = mcp_tasks.job_id)

-- name: is_any_over
SELECT EXISTS (SELECT 1 FROM mcp_tasks WHERE OF_MESH AND created_ms < ?3 AND IS_OVER)

-- name: forget
-- At most ?4 of them, the oldest first.
DELETE FROM mcp_tasks WHERE OF_MESH AND task_hash IN (
    SELECT task_hash FROM mcp_tasks WHERE OF_MESH AND created_ms < ?3 AND IS_OVER ORDER BY created_ms LIMIT ?4)
