-- What a person may look for by a text. `?1` is the scope, `?2` the repository, ?3 the text in small letters, ?4 the
-- maximum of each sort, ?5 the beginning of a job's id, ?6 of its ULID, ?7 of a thread's name.

-- from jobs: IN_WORKFLOW

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- name: find
-- Values of other types are planted.
WITH RECURSIVE threads (thread_id) AS (
    SELECT min(thread_id) FROM a2a_messages WHERE OF_MESH AND thread_id >= ?7
    UNION ALL
    SELECT (SELECT min(m.thread_id) FROM a2a_messages AS m
        WHERE m.scope_id = ?1 AND m.repository_id = ?2 AND m.thread_id > threads.thread_id)
    FROM threads WHERE substr(threads.thread_id, 1, length(?7)) = ?7
    LIMIT ?4
)
SELECT * FROM (
    SELECT 'job' AS sort, job_id AS id, coalesce(IN_WORKFLOW, kind) AS title, state AS detail FROM jobs
    WHERE OF_MESH AND job_id >= ?5 AND job_id < ?5 || 'g' LIMIT ?4)
UNION ALL SELECT * FROM (
    SELECT 'job', job_id, coalesce(IN_WORKFLOW, kind), state FROM jobs INDEXED BY jobs_by_ulid
    WHERE OF_MESH AND ulid >= ?6 AND ulid < ?6 || '~' LIMIT ?4)
UNION ALL SELECT * FROM (
    SELECT 'agent', agent_id, agent_id, action FROM agent_presence
    WHERE OF_MESH AND typeof(agent_id) = 'text' AND instr(lower(agent_id), ?3) > 0
    ORDER BY instr(lower(agent_id), ?3), agent_id LIMIT ?4)
UNION ALL SELECT * FROM (
    SELECT 'node', node_id, node_id, host FROM mesh_heartbeats
    WHERE OF_MESH AND typeof(node_id) = 'text' AND instr(lower(node_id), ?3) > 0
    ORDER BY instr(lower(node_id), ?3), node_id LIMIT ?4)
UNION ALL SELECT * FROM (
    SELECT 'kind', kind, kind, sum(jobs) || iif(sum(jobs) = 1, ' job', ' jobs') FROM job_counts
    WHERE OF_MESH AND typeof(kind) = 'text' AND instr(lower(kind), ?3) > 0 AND jobs > 0
    GROUP BY kind ORDER BY instr(lower(kind), ?3), kind LIMIT ?4)
UNION ALL SELECT * FROM (
    SELECT 'lock', lock_key, lock_key, min(holder_agent) FROM lock_holds
    WHERE OF_MESH AND expires_at > NOW_ISO AND substr(lock_key, 1, 5) <> 'mesh:'
      AND typeof(lock_key) = 'text' AND instr(lower(lock_key), ?3) > 0
    GROUP BY lock_key ORDER BY instr(lower(lock_key), ?3), lock_key LIMIT ?4)
UNION ALL SELECT * FROM (
    SELECT 'thread', thread_id, thread_id, '' FROM threads
    WHERE typeof(thread_id) = 'text' AND substr(thread_id, 1, length(?7)) = ?7 LIMIT ?4)
UNION ALL SELECT * FROM (
    SELECT 'conflict', conflict_id, table_name || ' ' || row_key, coalesce(left_agent, left_node)
    FROM occ_conflicts INDEXED BY occ_conflicts_open
    WHERE OF_MESH AND state = 'open' AND typeof(row_key) = 'text'
      AND instr(lower(conflict_id || ' ' || table_name || ' ' || row_key), ?3) > 0
    ORDER BY conflict_id LIMIT ?4)
