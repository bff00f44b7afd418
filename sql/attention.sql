-- Everything that needs a person, in one query.
--
-- ?1: scope, ?2: repository, ?3: the time, ?4: the time as text, ?5: the start of the first bar whose status claims
-- count, ?6: the maximum of rows of each sort, ?7: the maximum of rows that are counted, ?8: since when ends count, ?9:
-- before when a running job has given its last sign that makes no progress, ?10: ticks after which a node is dead. The
-- time is a value, so that a replica can answer. A column of rows is a JSON array of arrays in hex, since any text may be
-- invalid; long texts are cut.

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- from nodes: IS_NODE

-- from task_status: CLAIM

-- from task_status: RECORD

-- part: CONFLICTS
SELECT json_array(
    CAST(conflict_id AS TEXT), CAST(table_name AS TEXT), substr(CAST(row_key AS TEXT), 1, 200), CAST(left_node AS TEXT),
    CAST(left_agent AS TEXT), CAST(right_node AS TEXT), CAST(deferred_to AS TEXT), CAST(created_at AS TEXT)) AS record
FROM occ_conflicts WHERE OF_MESH AND state = 'open' ORDER BY conflict_id LIMIT ?6

-- part: IS_ASKED
-- Whether a question can still be answered.
OF_MESH AND answered_by IS NULL AND coalesce(expires_ms, ?3) >= ?3

-- part: QUESTIONS
SELECT json_array(
    CAST(q.job_id AS TEXT), CAST(q.question_id AS TEXT), CAST(q.asked_by AS TEXT), CAST(q.asked_of AS TEXT),
    CAST(q.asked_ms AS INTEGER), CAST(q.expires_ms AS INTEGER), substr(CAST(q.question AS TEXT), 1, 65536),
    CAST(j.kind AS TEXT)) AS record
FROM (SELECT * FROM job_questions WHERE IS_ASKED ORDER BY asked_ms, job_id LIMIT ?6) AS q
CROSS JOIN jobs AS j ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = q.job_id AND j.state = 'pending'

-- part: IS_PENDING
OF_MESH AND expires_ms > ?3 AND state = 'pending'

-- part: APPROVALS
-- Signed ops say what they ask for.
SELECT json_array(CAST(approval_id AS TEXT)) AS record FROM approvals INDEXED BY approvals_by_expiry
WHERE IS_PENDING ORDER BY approval_id LIMIT ?6

-- part: MESSAGE
json_array(
    CAST(message_uuid AS TEXT), CAST(sender_agent AS TEXT), CAST(receiver_agent AS TEXT), CAST(msg_type AS TEXT),
    CAST(priority AS INTEGER), CAST(thread_id AS TEXT), CAST(coalesce(ended_ms, ack_by_ms) AS INTEGER),
    CAST(delivery_attempts AS INTEGER), substr(CAST(ended_reason AS TEXT), 1, 200)) AS record FROM a2a_messages

-- part: IS_DEAD
OF_MESH AND ended_ms IS NOT NULL AND state = 'dead'

-- part: DEAD_LETTERS
SELECT MESSAGE INDEXED BY a2a_messages_ended WHERE IS_DEAD ORDER BY ended_ms DESC LIMIT ?6

-- part: IS_OVERDUE
OF_MESH AND acknowledged = 0 AND ack_by_ms IS NOT NULL AND ack_by_ms <= ?3 AND ended_ms IS NULL

-- part: OVERDUE
SELECT MESSAGE INDEXED BY a2a_messages_awaited WHERE IS_OVERDUE ORDER BY ack_by_ms LIMIT ?6

-- part: UNHANDLED
-- Failed jobs without a retry, the last ones first.
jobs AS j INDEXED BY jobs_failed
WHERE j.scope_id = ?1 AND j.repository_id = ?2 AND j.state = 'failed' AND j.ended_ms >= ?8
  AND NOT EXISTS (
      SELECT 1 FROM jobs AS r INDEXED BY jobs_retries
      WHERE r.scope_id = ?1 AND r.repository_id = ?2 AND r.retry_of = j.job_id)

-- part: FAILED
SELECT json_array(
    CAST(j.job_id AS TEXT), CAST(j.kind AS TEXT), CAST(j.claimer AS TEXT), CAST(j.attempts AS INTEGER),
    CAST(j.ended_ms AS INTEGER), CAST(j.exit_code AS INTEGER), substr(CAST(j.reason AS TEXT), 1, 200)) AS record
FROM UNHANDLED ORDER BY j.ended_ms DESC LIMIT ?6

-- part: IS_LATE
-- A promise whose time is over, though an answer may still come.
OF_MESH AND ended_ms IS NULL AND state = 'promised' AND due_ms < ?3

-- part: IS_BROKEN
OF_MESH AND ended_ms IS NOT NULL AND ended_ms >= ?8 AND state IN ('broken', 'expired', 'unanswered')

-- part: THREAD
json_array(
    CAST(thread_id AS TEXT), CAST(asker AS TEXT), CAST(helper AS TEXT), CAST(task_id AS TEXT), CAST(state AS TEXT),
    CAST(due_ms AS INTEGER), CAST(ended_ms AS INTEGER), substr(CAST(on_fail AS TEXT), 1, 200)) AS record
FROM help_threads

-- part: PROMISES
SELECT * FROM (
    SELECT THREAD INDEXED BY help_threads_open WHERE IS_LATE LIMIT ?6)
UNION ALL SELECT * FROM (
    SELECT THREAD INDEXED BY help_threads_broken WHERE IS_BROKEN ORDER BY ended_ms DESC LIMIT ?6)

-- part: SHARE
-- The share of a budget from which it is near its limit.
coalesce(iif(json_valid(b.document), b.document, '{}') ->> '$.thresholds.warn', 0.8)

-- part: BUDGETS
-- The limits that are nearly used up: in beats, tokens and money. Values of other types are planted.
SELECT json_array(subject, resource, spent, most, since_ms) AS record FROM (
    SELECT CAST(b.subject AS TEXT) AS subject, 'beats' AS resource, CAST(b.spent_bu AS REAL) AS spent,
        CAST(iif(json_valid(b.document), b.document, '{}') ->> 'max_bu' AS REAL) AS most,
        CAST(b.since_ms AS INTEGER) AS since_ms, SHARE AS share
    FROM budgets AS b WHERE b.scope_id = ?1 AND b.repository_id = ?2
    UNION ALL
    SELECT CAST(b.subject AS TEXT), CAST(l.resource AS TEXT), CAST(l.spent AS INTEGER), CAST(l.most AS INTEGER),
        CAST(b.since_ms AS INTEGER), SHARE
    FROM spend_limits AS l
    CROSS JOIN budgets AS b ON b.scope_id = ?1 AND b.repository_id = ?2 AND b.subject = l.subject
    WHERE l.scope_id = ?1 AND l.repository_id = ?2)
WHERE most IS NOT NULL AND spent >= share * most LIMIT ?7

-- part: WAITER
json_array(
    CAST(w.holder_agent AS TEXT), CAST(w.holder_node AS TEXT), CAST(w.lock_key AS TEXT), CAST(w.waits_since AS TEXT),
    CAST(h.holder_agent AS TEXT), CAST(h.lock_key AS TEXT)) AS record
FROM (SELECT * FROM lock_waiters WHERE OF_MESH AND alive_until > ?4 ORDER BY lock_key, ticket LIMIT ?6) AS w

-- part: ITS_KEYS
h.scope_id = ?1 AND h.repository_id = ?2 AND h.lock_key IN (
    SELECT w.lock_key UNION ALL
    SELECT o.other_key FROM lock_overlaps AS o
    WHERE o.scope_id = ?1 AND o.repository_id = ?2 AND o.lock_key = w.lock_key)
AND h.expires_at > ?4 AND h.request_id <> '' AND h.request_id <> w.request_id

-- part: WAITS
-- Who waits for whose lock, as `lock_blockers` has it.
SELECT * FROM (
    SELECT WAITER CROSS JOIN distributed_locks AS h ON ITS_KEYS
    UNION ALL SELECT WAITER CROSS JOIN lock_shares AS h ON ITS_KEYS AND NOT w.is_shared) LIMIT ?7

-- part: LAST_SIGN
-- When an attempt last said anything: its start, a note or a line of its log.
max(j.started_ms,
    coalesce((SELECT n.noted_ms FROM job_notes AS n
        WHERE n.scope_id = ?1 AND n.repository_id = ?2 AND n.job_id = j.job_id AND n.claim_token = j.claim_token), 0),
    coalesce((SELECT l.logged_ms FROM job_logs AS l
        WHERE l.scope_id = ?1 AND l.repository_id = ?2 AND l.job_id = j.job_id ORDER BY l.n DESC LIMIT 1), 0))

-- part: SILENT
-- Running jobs whose attempt is alive, and gives no sign.
SELECT json_array(
    CAST(j.job_id AS TEXT), CAST(j.kind AS TEXT), CAST(coalesce(t.agent_id, h.agent_id, j.claimer) AS TEXT),
    CAST(j.claimer AS TEXT), CAST(LAST_SIGN AS INTEGER)) AS record
FROM (
    SELECT * FROM jobs INDEXED BY jobs_held
    WHERE OF_MESH AND lease_until_ms IS NOT NULL AND lease_until_ms > ?3 AND started_ms < ?9 LIMIT ?7) AS j
LEFT JOIN job_takes AS t ON t.scope_id = ?1 AND t.repository_id = ?2 AND t.job_id = j.job_id
    AND t.claim_token = j.claim_token
LEFT JOIN mesh_heartbeats AS h ON h.scope_id = ?1 AND h.repository_id = ?2 AND h.node_id = j.claimer
WHERE LAST_SIGN < ?9 LIMIT ?6

-- part: BAR
(SELECT max(window_ms) FROM status_claims WHERE OF_MESH AND window_ms BETWEEN ?5 AND ?3)

-- part: BAR_BEFORE
(SELECT max(window_ms) FROM status_claims WHERE OF_MESH AND window_ms >= ?5 AND window_ms < BAR)

-- part: TASKS
epoch_ms BETWEEN ?5 AND ?3 AND typeof(task_id) = 'text' GROUP BY agent_id, task_id LIMIT ?6

-- part: STATUSES
-- The last claim of each task in each of the last two bars, by agent and task.
SELECT RECORD AS record FROM (
    SELECT * FROM (SELECT CLAIM WHERE OF_MESH AND window_ms = BAR AND TASKS)
    UNION ALL SELECT * FROM (SELECT CLAIM WHERE OF_MESH AND window_ms = BAR_BEFORE AND TASKS)) AS c

-- part: IS_GONE
OF_MESH AND left_ms IS NULL AND last_seen_ms + spare_ms <= ?3 - ?10 * tick_ms AND last_seen_ms >= ?8 AND IS_NODE

-- part: GONE
SELECT json_array(node_id, host, last_seen_ms, load, agent_id, substr(activity, 1, 200)) AS record
FROM mesh_heartbeats WHERE IS_GONE ORDER BY last_seen_ms DESC LIMIT ?6

-- name: attention
SELECT
    (SELECT json_group_array(hex(record)) FROM (CONFLICTS)) AS conflicts,
    (SELECT json_group_array(hex(record)) FROM (QUESTIONS)) AS questions,
    (SELECT json_group_array(hex(record)) FROM (APPROVALS)) AS approvals,
    (SELECT json_group_array(hex(record)) FROM (DEAD_LETTERS)) AS dead_letters,
    (SELECT json_group_array(hex(record)) FROM (OVERDUE)) AS overdue,
    (SELECT json_group_array(hex(record)) FROM (FAILED)) AS failed,
    (SELECT json_group_array(hex(record)) FROM (PROMISES)) AS promises,
    (SELECT json_group_array(hex(record)) FROM (BUDGETS)) AS budgets,
    (SELECT json_group_array(hex(record)) FROM (WAITS)) AS waits,
    (SELECT json_group_array(hex(record)) FROM (SILENT)) AS silent,
    (SELECT json_group_array(hex(record)) FROM (STATUSES)) AS statuses,
    (SELECT json_group_array(hex(record)) FROM (GONE)) AS gone,
    json_array(
        (SELECT count(*) FROM (SELECT 1 FROM occ_conflicts WHERE OF_MESH AND state = 'open' LIMIT ?7)),
        (SELECT count(*) FROM (SELECT 1 FROM job_questions WHERE IS_ASKED LIMIT ?7)),
        (SELECT count(*) FROM (SELECT 1 FROM approvals INDEXED BY approvals_by_expiry WHERE IS_PENDING LIMIT ?7)),
        (SELECT count(*) FROM (SELECT 1 FROM a2a_messages INDEXED BY a2a_messages_ended WHERE IS_DEAD LIMIT ?7)),
        (SELECT count(*) FROM (SELECT 1 FROM a2a_messages INDEXED BY a2a_messages_awaited WHERE IS_OVERDUE LIMIT ?7)),
        (SELECT count(*) FROM (SELECT 1 FROM UNHANDLED LIMIT ?7)),
        (SELECT count(*) FROM (SELECT 1 FROM help_threads INDEXED BY help_threads_open WHERE IS_LATE LIMIT ?7))
        + (SELECT count(*) FROM (SELECT 1 FROM help_threads INDEXED BY help_threads_broken WHERE IS_BROKEN LIMIT ?7)),
        (SELECT count(*) FROM (SELECT 1 FROM mesh_heartbeats WHERE IS_GONE LIMIT ?7))) AS counts
