-- The state of the whole mesh in one query: a screen that refreshes every second sends one request each time.
--
-- ?1: scope, ?2: repository, ?3 to ?11: as in `agents.sql`, ?12: the maximum of rows of each sort, ?13: the lock key of
-- the rhythm's leader, ?14: the start of the first bar whose status claims count, ?15: the parts that are read, as the sum
-- of their flags. A column of rows is a JSON array of arrays, and long texts are cut. The statement `newest` of
-- `agents.sql` replaces the one with its name; its records are in hex, since any text of theirs may be invalid.

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- from nodes: IS_NODE

-- from nodes: ANNOUNCED

-- from agents: NEWEST

-- from tempo_control: INCIDENT

-- from task_status: CLAIM

-- from task_status: RECORD

-- part: NODES
-- The nodes seen most recently, with their vitals: column by column as nodes are read elsewhere.
SELECT json_group_array(json_array(
    node_id, agent_id, incarnation, beats, last_seen_ms, consuming_ms, progressing_ms, left_ms, started_ms, tick_ms,
    substr(activity, 1, 200), host, pid, version, ANNOUNCED, control_addr, public_key, kinds, capacity, load, clock_distance_ms,
    machine_id, place, policy_roots, CAST(written AS INTEGER), CAST(waiting AS INTEGER), CAST(replica_lag_ms AS INTEGER),
    iif(json_valid(faults), faults, NULL), spare_ms))
FROM (SELECT * FROM mesh_heartbeats WHERE OF_MESH AND IS_NODE ORDER BY left_ms IS NOT NULL, last_seen_ms DESC LIMIT ?12)
    AS mesh_heartbeats
LEFT JOIN node_vitals USING (scope_id, repository_id, node_id)

-- part: KINDS
-- The number of jobs of each kind in each state.
SELECT json_group_array(json_array(CAST(kind AS TEXT), CAST(state AS TEXT), CAST(jobs AS INTEGER))) FROM job_counts WHERE OF_MESH AND jobs > 0

-- part: PAUSED
SELECT json_group_array(CAST(kind AS TEXT)) FROM job_kinds WHERE OF_MESH AND is_paused

-- part: LONGEST
-- For each kind, the time since which the longest waiting job could have been claimed.
SELECT json_group_object(CAST(kind AS TEXT), CAST(since_ms AS INTEGER)) FROM (
    SELECT k.kind AS kind, min((
        SELECT r.not_before_ms FROM jobs AS r INDEXED BY jobs_ready
        WHERE r.scope_id = ?1 AND r.repository_id = ?2 AND r.kind = k.kind AND r.priority = p.value
          AND r.state = 'pending' AND r.waits = 0 ORDER BY r.not_before_ms LIMIT 1)) AS since_ms
    FROM job_counts AS k CROSS JOIN json_each('[0, 1, 2, 3]') AS p
    WHERE k.scope_id = ?1 AND k.repository_id = ?2 AND k.state = 'pending' AND k.jobs > 0
    GROUP BY k.kind) WHERE since_ms IS NOT NULL

-- part: JOBS
-- Running jobs, the latest failures, and the oldest waiting ones.
SELECT json_group_array(json_array(
    CAST(j.job_id AS TEXT), CAST(j.kind AS TEXT), j.state, CAST(j.priority AS INTEGER), CAST(j.waits AS INTEGER),
    CAST(j.not_before_ms AS INTEGER), CAST(j.claimer AS TEXT), CAST(j.lease_until_ms AS INTEGER),
    CAST(j.attempts AS INTEGER), CAST(j.max_attempts AS INTEGER), CAST(j.created_ms AS INTEGER),
    CAST(j.started_ms AS INTEGER), CAST(j.ended_ms AS INTEGER), CAST(j.exit_code AS INTEGER),
    substr(CAST(j.reason AS TEXT), 1, 200), CAST(n.progress AS REAL), substr(CAST(n.message AS TEXT), 1, 200)))
FROM (
    SELECT * FROM (
        SELECT id FROM jobs INDEXED BY jobs_held WHERE OF_MESH AND lease_until_ms IS NOT NULL LIMIT ?12)
    UNION ALL SELECT * FROM (
        SELECT id FROM jobs INDEXED BY jobs_gone_wrong
        WHERE OF_MESH AND state IN ('failed', 'aborted') AND state = 'failed' ORDER BY id DESC LIMIT ?12)
    UNION ALL SELECT * FROM (
        SELECT id FROM jobs INDEXED BY jobs_gone_wrong
        WHERE OF_MESH AND state IN ('failed', 'aborted') AND state = 'aborted' ORDER BY id DESC LIMIT ?12)
    UNION ALL SELECT * FROM (
        SELECT id FROM jobs INDEXED BY jobs_open
        WHERE OF_MESH AND ended_ms IS NULL AND state = 'pending' ORDER BY id LIMIT ?12)
) AS chosen
CROSS JOIN jobs AS j ON j.id = chosen.id
LEFT JOIN job_notes AS n ON n.scope_id = ?1 AND n.repository_id = ?2 AND n.job_id = j.job_id
    AND n.claim_token = j.claim_token

-- part: LOCKS
SELECT json_group_array(json_array(
    CAST(lock_key AS TEXT), CAST(fence_token AS INTEGER), CAST(holder_node AS TEXT), CAST(holder_agent AS TEXT),
    CAST(is_shared AS INTEGER), CAST(acquired_at AS TEXT), CAST(expires_at AS TEXT)))
FROM (
    SELECT * FROM lock_holds WHERE OF_MESH AND expires_at > NOW_ISO AND substr(lock_key, 1, 5) <> 'mesh:'
    ORDER BY lock_key, fence_token LIMIT ?12)

-- part: WAITERS
SELECT json_group_array(json_array(
    CAST(lock_key AS TEXT), CAST(holder_node AS TEXT), CAST(holder_agent AS TEXT), CAST(is_shared AS INTEGER),
    CAST(waits_since AS TEXT)))
FROM (SELECT * FROM lock_waiters WHERE OF_MESH AND alive_until > NOW_ISO ORDER BY lock_key, ticket LIMIT ?12)

-- part: MAIL
-- The number of unread, claimed, overdue and dead messages.
SELECT json_array(
    coalesce(sum(state = 'stored'), 0), coalesce(sum(state = 'delivered'), 0),
    coalesce(sum(ack_by_ms <= NOW_MS), 0),
    (SELECT count(*) FROM a2a_messages INDEXED BY a2a_messages_ended
     WHERE OF_MESH AND ended_ms IS NOT NULL AND state = 'dead'))
FROM a2a_messages INDEXED BY a2a_messages_open WHERE OF_MESH AND ended_ms IS NULL

-- part: MESSAGES
-- Overdue messages, the latest dead letters, and the longest waiting ones.
SELECT json_group_array(json_array(
    CAST(message_uuid AS TEXT), CAST(sender_agent AS TEXT), CAST(receiver_agent AS TEXT), CAST(msg_type AS TEXT),
    CAST(priority AS INTEGER), state, CAST(created_at AS TEXT), CAST(ack_by_ms AS INTEGER),
    CAST(delivery_attempts AS INTEGER), CAST(max_attempts AS INTEGER),
    substr(CAST(ended_reason AS TEXT), 1, 200)))
FROM a2a_messages WHERE id IN (
    SELECT id FROM (
        SELECT id FROM a2a_messages INDEXED BY a2a_messages_awaited
        WHERE OF_MESH AND acknowledged = 0 AND ack_by_ms IS NOT NULL AND ack_by_ms <= NOW_MS AND ended_ms IS NULL
        ORDER BY ack_by_ms LIMIT ?12)
    UNION SELECT id FROM (
        SELECT id FROM a2a_messages INDEXED BY a2a_messages_ended
        WHERE OF_MESH AND ended_ms IS NOT NULL AND state = 'dead' ORDER BY ended_ms DESC LIMIT ?12)
    UNION SELECT id FROM (
        SELECT id FROM a2a_messages INDEXED BY a2a_messages_open
        WHERE OF_MESH AND ended_ms IS NULL ORDER BY id LIMIT ?12))

-- part: CONFLICTS
SELECT json_group_array(json_array(
    CAST(conflict_id AS TEXT), CAST(table_name AS TEXT), substr(CAST(row_key AS TEXT), 1, 200),
    CAST(left_node AS TEXT), CAST(left_agent AS TEXT), CAST(right_node AS TEXT), CAST(deferred_to AS TEXT),
    CAST(created_at AS TEXT)))
FROM (SELECT * FROM occ_conflicts WHERE OF_MESH AND state = 'open' ORDER BY conflict_id LIMIT ?12)

-- part: APPROVALS
-- The oldest ones that wait for a decision. Signed ops say what they ask for.
SELECT json_group_array(CAST(approval_id AS TEXT)) FROM (
    SELECT approval_id FROM approvals INDEXED BY approvals_by_expiry
    WHERE OF_MESH AND expires_ms > NOW_MS AND state = 'pending' ORDER BY approval_id LIMIT ?12)

-- part: BAR
(SELECT max(window_ms) FROM status_claims WHERE OF_MESH AND window_ms BETWEEN ?14 AND ?3)

-- part: BAR_BEFORE
(SELECT max(window_ms) FROM status_claims WHERE OF_MESH AND window_ms >= ?14 AND window_ms < BAR)

-- part: TASKS
epoch_ms BETWEEN ?14 AND ?3 AND typeof(task_id) = 'text' GROUP BY agent_id, task_id LIMIT ?12

-- part: STATUSES
-- The last claim of each task in each of the last two bars, by agent and task.
SELECT json_group_array(hex(RECORD)) FROM (
    SELECT * FROM (SELECT CLAIM WHERE OF_MESH AND window_ms = BAR AND TASKS)
    UNION ALL SELECT * FROM (SELECT CLAIM WHERE OF_MESH AND window_ms = BAR_BEFORE AND TASKS)) AS c

-- part: LEADER
SELECT CAST(holder_node AS TEXT) FROM distributed_locks
WHERE OF_MESH AND lock_key = ?13 AND request_id <> '' AND expires_at > NOW_ISO

-- part: REPORT
-- On the last bar that has a report.
SELECT CAST(document AS TEXT) FROM bar_reports WHERE OF_MESH ORDER BY window_ms DESC, revision DESC LIMIT 1

-- part: ROLES
-- Whether cached roles are still valid.
json_array(
    (SELECT CAST(op_id AS TEXT) FROM mesh_owner WHERE OF_MESH),
    (SELECT CAST(max(hlc) AS TEXT) FROM agent_oplog INDEXED BY agent_oplog_of_owner
     WHERE OF_MESH AND kind = 'DesignateCoordinator'
       AND kind IN ('DesignateCoordinator', 'RouteKind', 'RekeyNode', 'Anchor')),
    (SELECT CAST(max(hlc) AS TEXT) FROM agent_oplog INDEXED BY agent_oplog_of_keys
     WHERE OF_MESH AND kind IN ('RekeyNode', 'AdmitNode', 'SetStrict', 'TransferOwnership')))

-- name: overview
-- `tempos` shows whether cached tempos are still valid. A part that is not wanted costs nothing.
SELECT NOW_MS AS now_ms,
    iif(?15 & 1, (NODES), '[]') AS nodes,
    iif(?15 & 2, (SELECT json_group_array(hex(record)) FROM (NEWEST)), '[]') AS agents,
    iif(?15 & 1, (SELECT json_group_array(CAST(node_id AS TEXT)) FROM job_drains WHERE OF_MESH), '[]') AS drains,
    iif(?15 & 1, ROLES, '') AS roles,
    iif(?15 & 4, (KINDS), '[]') AS kinds,
    iif(?15 & 4, (PAUSED), '[]') AS paused,
    iif(?15 & 4, (LONGEST), '{}') AS longest,
    iif(?15 & 4, (JOBS), '[]') AS jobs,
    iif(?15 & 8, (LOCKS), '[]') AS locks,
    iif(?15 & 8, (WAITERS), '[]') AS waiters,
    iif(?15 & 16, (MAIL), '[0,0,0,0]') AS mail,
    iif(?15 & 16, (MESSAGES), '[]') AS messages,
    iif(?15 & 32, (CONFLICTS), '[]') AS conflicts,
    iif(?15 & 32, (SELECT count(*) FROM occ_conflicts WHERE OF_MESH AND state = 'open'), 0) AS open_conflicts,
    iif(?15 & 64, (
        SELECT count(*) FROM approvals INDEXED BY approvals_by_expiry
        WHERE OF_MESH AND expires_ms > NOW_MS AND state = 'pending'), 0) AS open_approvals,
    iif(?15 & 64, (APPROVALS), '[]') AS approvals,
    (SELECT CAST(max(hlc) AS TEXT) FROM tempo_policies WHERE OF_MESH) AS tempos,
    iif(?15 & 256, (SELECT json_array(INCIDENT) FROM tempo_incidents WHERE OF_MESH), NULL) AS incident,
    iif(?15 & 256, (LEADER), NULL) AS leader,
    iif(?15 & 128, (STATUSES), '[]') AS statuses,
    iif(?15 & 256, (REPORT), NULL) AS report,
    (SELECT id FROM agent_oplog NOT INDEXED WHERE OF_MESH ORDER BY id DESC LIMIT 1) AS last_op_id

-- name: progress
-- ?3: the time, ?4: the maximum of rows. What running jobs have reported last, the number of the last piece of their
-- logs, and that of the last row of their steps. As hex, since any text may be invalid.
SELECT hex(json_array(
    CAST(j.job_id AS TEXT), CAST(n.progress AS REAL), substr(CAST(n.message AS TEXT), 1, 200), coalesce((
        SELECT CAST(l.n AS INTEGER) FROM job_logs AS l
        WHERE l.scope_id = ?1 AND l.repository_id = ?2 AND l.job_id = j.job_id ORDER BY l.n DESC LIMIT 1), 0), coalesce((
        SELECT CAST(s.seq AS INTEGER) FROM job_steps AS s
        WHERE s.scope_id = ?1 AND s.repository_id = ?2 AND s.job_id = j.job_id ORDER BY s.seq DESC LIMIT 1), 0))) AS record
FROM (
    SELECT * FROM jobs INDEXED BY jobs_held
    WHERE OF_MESH AND lease_until_ms IS NOT NULL AND lease_until_ms > ?3 LIMIT ?4) AS j
LEFT JOIN job_notes AS n ON n.scope_id = ?1 AND n.repository_id = ?2 AND n.job_id = j.job_id
    AND n.claim_token = j.claim_token
