-- The census: the counts of everything, in one query.

-- part: OF_MESH
-- ?1: scope, ?2: repository
scope_id = ?1 AND repository_id = ?2

-- part: KINDS
-- The kinds that are named: the ?4 with the most jobs.
SELECT kind FROM job_counts WHERE OF_MESH GROUP BY kind ORDER BY sum(jobs) DESC, kind LIMIT ?4

-- part: IS_SUSPENDED
-- Whether a job waits without a worker, at ?3.
OF_MESH AND state = 'pending' AND attempts > 0 AND (waits > 0 OR reason = 'it sleeps')
  AND (waits > 0 OR not_before_ms > ?3) AND typeof(kind) = 'text'

-- name: suspended
SELECT kind, count(*) AS jobs FROM jobs INDEXED BY jobs_suspended WHERE IS_SUSPENDED GROUP BY kind

-- name: take
-- A replica can't be asked the time, so it is passed in: ?3 in milliseconds, ?6 as text. At most ?5 messages are
-- counted, and of the claimable jobs of a kind, ?7. Of budgets, the ?8 with the largest spent share are listed.
SELECT
    (SELECT json_group_array(json_array(kind, state, jobs)) FROM (
        SELECT iif(kind IN (KINDS), kind, NULL) AS kind, state, sum(jobs) AS jobs
        FROM job_counts WHERE OF_MESH GROUP BY 1, 2)) AS jobs,
    (SELECT json_group_array(json_array(kind, jobs)) FROM (
        SELECT iif(k.kind IN (KINDS), k.kind, NULL) AS kind, sum((
            SELECT count(*) FROM (
                SELECT 1 FROM jobs AS r INDEXED BY jobs_ready
                WHERE r.scope_id = ?1 AND r.repository_id = ?2 AND r.kind = k.kind AND r.priority IN (0, 1, 2, 3)
                  AND r.state = 'pending' AND r.waits = 0 AND r.not_before_ms <= ?3 LIMIT ?7))) AS jobs
        FROM job_counts AS k
        WHERE k.scope_id = ?1 AND k.repository_id = ?2 AND k.state = 'pending' AND k.jobs > 0
        GROUP BY 1)) AS jobs_ready,
    (SELECT json_group_array(json_array(kind, jobs)) FROM (
        SELECT iif(kind IN (KINDS), kind, NULL) AS kind, count(*) AS jobs
        FROM (SELECT kind FROM jobs INDEXED BY jobs_suspended WHERE IS_SUSPENDED LIMIT ?7) GROUP BY 1)) AS jobs_suspended,
    (SELECT json_group_array(json_array(node_id, last_seen_ms, tick_ms, CAST(spare_ms AS INTEGER))) FROM mesh_heartbeats
        WHERE OF_MESH AND left_ms IS NULL AND typeof(node_id) = 'text' AND typeof(last_seen_ms) = 'integer'
          AND tick_ms BETWEEN 1 AND 1e15) AS nodes,
    (SELECT count(*) FROM mesh_heartbeats WHERE OF_MESH AND left_ms IS NOT NULL) AS nodes_left,
    (SELECT count(*) FROM lock_holds WHERE OF_MESH AND expires_at > ?6) AS locks_held,
    (SELECT count(*) FROM lock_waiters WHERE OF_MESH AND alive_until > ?6) AS lock_waiters,
    (SELECT count(*) FROM (
        SELECT 1 FROM a2a_messages INDEXED BY a2a_messages_open
        WHERE OF_MESH AND ended_ms IS NULL LIMIT ?5)) AS messages_unacked,
    (SELECT count(*) FROM (
        SELECT 1 FROM a2a_messages INDEXED BY a2a_messages_awaited
        WHERE OF_MESH AND acknowledged = 0 AND ack_by_ms IS NOT NULL AND ack_by_ms <= ?3
        LIMIT ?5)) AS messages_overdue,
    (SELECT count(*) FROM (
        SELECT 1 FROM a2a_messages INDEXED BY a2a_messages_ended
        WHERE OF_MESH AND ended_ms IS NOT NULL AND state = 'dead' LIMIT ?5)) AS messages_dead,
    (SELECT count(*) FROM occ_conflicts WHERE OF_MESH AND state = 'open') AS conflicts_open,
    (SELECT json_group_array(json_array(subject, pruned, needed, completed_ms)) FROM retention_progress
        WHERE OF_MESH) AS pruning,
    (SELECT document FROM bar_reports WHERE OF_MESH ORDER BY window_ms DESC, revision DESC LIMIT 1) AS last_report,
    (SELECT json_group_array(json_array(subject, part)) FROM (
        SELECT subject, spent_bu / max_bu AS part FROM (
            SELECT subject, spent_bu, iif(json_valid(document), document ->> 'max_bu', 0) AS max_bu
            FROM budgets WHERE OF_MESH)
        WHERE max_bu > 0 ORDER BY part DESC, subject LIMIT ?8)) AS budgets
