-- Retention: the policies, the progress of pruning, and the rows that may be pruned.
--
-- Each sweep goes through a table by position, page by page, and reads what decides whether a row is still needed. The
-- statement that prunes rows checks it again: a row that something has begun to need meanwhile stays.

-- from oplog: ENTRY
-- from grant_usage: IS_OPEN

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- --- policies and progress -------------------------------------------------------------------------------

-- name: policies
SELECT subject, kind, age_ms, max_rows, max_bytes FROM retention_policies WHERE OF_MESH

-- name: set_policy
INSERT INTO retention_policies (scope_id, repository_id, subject, kind, age_ms, max_rows, max_bytes)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT DO UPDATE SET
    age_ms = excluded.age_ms, max_rows = excluded.max_rows, max_bytes = excluded.max_bytes

-- name: unset_policy
DELETE FROM retention_policies WHERE OF_MESH AND subject = ?3 AND kind = ?4

-- name: count_policies
SELECT count(*) FROM retention_policies WHERE OF_MESH

-- name: progress
SELECT subject, position, pruned, needed, needed_so_far, attempted_ms, completed_ms
FROM retention_progress WHERE OF_MESH

-- name: record_progress
-- ?3: the subject, ?4: where the next pass continues, ?5: how many rows were pruned, ?6: how many are needed, since the
-- beginning of the pass if it is not complete, ?7: whether it is. Before the first complete pass, the time of the whole
-- is when pruning began.
INSERT INTO retention_progress (
    scope_id, repository_id, subject, position, pruned, needed, needed_so_far, attempted_ms, completed_ms)
VALUES (?1, ?2, ?3, ?4, ?5, iif(?7, ?6, 0), iif(?7, 0, ?6), NOW_MS, iif(?7 OR ?3 = '', NOW_MS, NULL))
ON CONFLICT DO UPDATE SET
    position = excluded.position, pruned = pruned + excluded.pruned,
    needed = iif(?7, excluded.needed, needed), needed_so_far = excluded.needed_so_far,
    attempted_ms = excluded.attempted_ms, completed_ms = iif(?7, NOW_MS, completed_ms)

-- --- jobs ------------------------------------------------------------------------------------------------

-- part: JOB_NEEDED
-- Whether anything else than a job needs the ended job j: a task of an MCP client, a question, compensations that are not
-- scheduled yet, a cron or rule whose last job it is, or another job of its run that has not ended. The newest row stays:
-- its id would be issued again.
(j.job_id IN (SELECT job_id FROM mcp_tasks WHERE OF_MESH)
OR j.job_id IN (SELECT job_id FROM job_questions WHERE OF_MESH)
OR j.job_id IN (SELECT job_id FROM job_cleanups WHERE OF_MESH)
OR j.job_id IN (SELECT last_job FROM job_crons WHERE OF_MESH AND last_job IS NOT NULL)
OR j.job_id IN (SELECT last_job FROM job_rules WHERE OF_MESH AND last_job IS NOT NULL)
OR j.id = (SELECT max(id) FROM jobs)
OR EXISTS (
    SELECT 1 FROM jobs AS o INDEXED BY jobs_by_ulid
    WHERE o.scope_id = ?1 AND o.repository_id = ?2 AND o.ended_ms IS NULL
      AND o.ulid BETWEEN substr(j.ulid, 1, 23) || '000' AND substr(j.ulid, 1, 23) || 'ZZZ'))

-- part: JOB_REFERRERS
-- The jobs that wait or waited for j, and its retries.
SELECT d.job_id FROM job_predecessors AS d INDEXED BY job_successors
WHERE d.scope_id = ?1 AND d.repository_id = ?2 AND d.predecessor = j.job_id
UNION
SELECT r.job_id FROM jobs AS r INDEXED BY jobs_retries
WHERE r.scope_id = ?1 AND r.repository_id = ?2 AND r.retry_of = j.job_id AND r.retry_of IS NOT NULL

-- part: JOBS_AFTER
-- Up to ?4 jobs after ?3. More is read only of jobs that ended until ?5, or are at ?6 or before.
(SELECT id, job_id, ulid, kind, created_ms, ended_ms, ended_ms <= ?5 OR id <= ?6 AS may_be_due
FROM jobs NOT INDEXED WHERE id > ?3 AND OF_MESH ORDER BY id LIMIT ?4) AS j

-- name: jobs
SELECT j.id, j.job_id, j.kind, j.created_ms, j.ended_ms, iif(may_be_due, JOB_NEEDED, 0),
    iif(may_be_due, (SELECT json_group_array(job_id) FROM (JOB_REFERRERS)), '[]')
FROM JOBS_AFTER ORDER BY j.id

-- name: jobs_last
-- The last position of the ended jobs that are too many: all but ?5 of those whose kind is among ?3, or with ?4 is not.
SELECT id FROM jobs NOT INDEXED
WHERE OF_MESH AND ended_ms IS NOT NULL AND (kind IN (SELECT value FROM json_each(?3))) <> ?4
ORDER BY id DESC LIMIT 1 OFFSET ?5

-- name: refuse_needed_jobs
-- ?3: the jobs that are to be pruned together.
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM json_each(?3) AS i
    LEFT JOIN jobs AS j ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = i.value
    WHERE j.id IS NULL OR j.ended_ms IS NULL OR JOB_NEEDED OR EXISTS (
        SELECT 1 FROM (JOB_REFERRERS) WHERE job_id NOT IN (SELECT value FROM json_each(?3))))

-- name: uncount_jobs
UPDATE job_counts SET jobs = job_counts.jobs - p.ended
FROM (
    SELECT j.kind, j.state, count(*) AS ended FROM json_each(?3) AS i
    CROSS JOIN jobs AS j ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = i.value GROUP BY 1, 2) AS p
WHERE OF_MESH AND job_counts.kind = p.kind AND job_counts.state = p.state

-- name: prune_predecessors
DELETE FROM job_predecessors WHERE OF_MESH AND job_id IN (SELECT value FROM json_each(?3))

-- name: prune_notes_of_jobs
DELETE FROM job_notes WHERE OF_MESH AND job_id IN (SELECT value FROM json_each(?3))

-- name: prune_steps_of_jobs
DELETE FROM job_steps WHERE OF_MESH AND job_id IN (SELECT value FROM json_each(?3))

-- name: prune_logs_of_jobs
DELETE FROM job_logs WHERE OF_MESH AND job_id IN (SELECT value FROM json_each(?3))

-- name: prune_phrases_of_jobs
-- Attempts whose cost was never recorded: their workers are long gone.
DELETE FROM phrase_begins WHERE OF_MESH AND job_id IN (SELECT value FROM json_each(?3))

-- name: prune_jobs
DELETE FROM jobs WHERE OF_MESH AND job_id IN (SELECT value FROM json_each(?3))

-- name: last_entry
SELECT max(id) FROM agent_oplog WHERE OF_MESH

-- name: ops_naming
-- The accepted ops about jobs with a text (?5) in their payload, after an entry (?3) and up to another (?4).
SELECT ENTRY FROM agent_oplog NOT INDEXED
WHERE id > ?3 AND id <= ?4 AND OF_MESH AND accepted = 1 AND instr(payload, ?5) > 0
  AND kind IN ('ScheduleJob', 'CompleteJob', 'ExpireWork', 'AbortJob', 'PruneJobs')
  AND typeof(payload) = 'text' AND typeof(node_id) = 'text' AND typeof(seq) = 'integer'
ORDER BY id

-- name: logs
-- Only of jobs that have any, the end is read.
SELECT j.id, j.job_id, j.kind, j.created_ms, iif(may_be_due AND EXISTS (
        SELECT 1 FROM job_logs AS l WHERE l.scope_id = ?1 AND l.repository_id = ?2 AND l.job_id = j.job_id),
    j.ended_ms, NULL), 0, '[]'
FROM JOBS_AFTER ORDER BY j.id

-- name: prune_logs
-- At most ?4 pieces of the logs of these jobs (?3), which have ended.
DELETE FROM job_logs WHERE OF_MESH AND (job_id, n) IN (
    SELECT l.job_id, l.n FROM json_each(?3) AS i
    CROSS JOIN jobs AS j ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = i.value AND j.ended_ms IS NOT NULL
    CROSS JOIN job_logs AS l ON l.scope_id = ?1 AND l.repository_id = ?2 AND l.job_id = j.job_id
    LIMIT ?4)

-- name: notes
-- Only of jobs that have any, the end is read.
SELECT j.id, j.job_id, j.kind, j.created_ms, iif(may_be_due AND EXISTS (
        SELECT 1 FROM job_notes AS l WHERE l.scope_id = ?1 AND l.repository_id = ?2 AND l.job_id = j.job_id),
    j.ended_ms, NULL), 0, '[]'
FROM JOBS_AFTER ORDER BY j.id

-- name: prune_notes
DELETE FROM job_notes WHERE OF_MESH AND job_id IN (
    SELECT j.job_id FROM json_each(?3) AS i
    CROSS JOIN jobs AS j ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = i.value AND j.ended_ms IS NOT NULL)

-- --- artifacts -------------------------------------------------------------------------------------------

-- part: IS_AT_REST
-- Whether the artifact a was no output for two hours: a job that has it was ended before.
a.used_ms <= NOW_MS - 7200000

-- part: ARTIFACT_HELD
-- Whether an agent that holds a job has kept the artifact a for it, or a job that has not ended has it as an input.
a.hash IN (
    SELECT k.value ->> 'hash' FROM job_takes AS t, json_each(iif(json_valid(t.artifacts), t.artifacts, '[]')) AS k
    WHERE t.scope_id = ?1 AND t.repository_id = ?2
    UNION ALL
    SELECT iif(instr(i.value ->> 'hash', ':'), '', coalesce(i.value ->> 'algo', 'blake3') || ':') || (i.value ->> 'hash')
    FROM jobs AS j INDEXED BY jobs_open,
        json_each(iif(instr(j.manifest, '"inputs":[{') AND json_valid(j.manifest), j.manifest, '{}'), '$.inputs') AS i
    WHERE j.scope_id = ?1 AND j.repository_id = ?2 AND j.ended_ms IS NULL)

-- name: artifacts
SELECT a.id, a.hash, a.type, a.created_ms, iif(IS_AT_REST, a.used_ms, NULL),
    iif(a.used_ms <= ?5 OR a.id <= ?6, ARTIFACT_HELD, 0), '[]'
FROM (SELECT id, hash, type, created_ms, used_ms FROM job_artifacts NOT INDEXED
    WHERE id > ?3 AND OF_MESH ORDER BY id LIMIT ?4) AS a
ORDER BY a.id

-- name: artifacts_last
SELECT id FROM job_artifacts NOT INDEXED
WHERE OF_MESH AND (type IN (SELECT value FROM json_each(?3))) <> ?4
ORDER BY id DESC LIMIT 1 OFFSET ?5

-- name: artifacts_last_by_bytes
-- The last position of the artifacts that are more than ?5 bytes together with all later ones.
SELECT id FROM (
    SELECT id, sum(size) OVER (ORDER BY id DESC) AS bytes FROM job_artifacts NOT INDEXED
    WHERE OF_MESH AND (type IN (SELECT value FROM json_each(?3))) <> ?4 ORDER BY id DESC)
WHERE bytes > ?5 ORDER BY id DESC LIMIT 1

-- name: jobs_through
-- The last of up to ?4 jobs after ?3, and when the first of them was created.
SELECT max(id), min(created_ms) FROM (
    SELECT id, created_ms FROM jobs NOT INDEXED WHERE id > ?3 AND OF_MESH ORDER BY id LIMIT ?4)

-- name: outputs_among
-- The hashes among ?5 that are outputs of the jobs after ?3 and up to ?4, or results of their steps.
SELECT s.value ->> 'artifact' AS hash
FROM jobs AS j NOT INDEXED
CROSS JOIN job_steps AS s ON s.scope_id = ?1 AND s.repository_id = ?2 AND s.job_id = j.job_id
WHERE j.id > ?3 AND j.id <= ?4 AND j.scope_id = ?1 AND j.repository_id = ?2
  AND iif(json_valid(s.value), s.value ->> 'artifact', NULL) IN (SELECT value FROM json_each(?5))
UNION
SELECT DISTINCT o.value ->> 'hash'
FROM jobs AS j NOT INDEXED,
    json_each(iif(json_valid(j.output_artifacts), j.output_artifacts, '[]')) AS o
WHERE j.id > ?3 AND j.id <= ?4 AND j.scope_id = ?1 AND j.repository_id = ?2 AND j.output_artifacts <> '[]'
  AND o.value ->> 'hash' IN (SELECT value FROM json_each(?5))

-- name: date_artifacts
-- At most ?3 at once: what used them before has ended until now.
UPDATE job_artifacts SET used_ms = NOW_MS WHERE id IN (
    SELECT id FROM job_artifacts INDEXED BY job_artifacts_undated WHERE OF_MESH AND used_ms IS NULL LIMIT ?3)

-- name: has_undated_artifacts
SELECT EXISTS (SELECT 1 FROM job_artifacts INDEXED BY job_artifacts_undated WHERE OF_MESH AND used_ms IS NULL)

-- name: ask_for_removal
-- Before the rows go: of files, the nodes that have them.
INSERT INTO artifact_removals (scope_id, repository_id, hash, node_id, noted_ms)
SELECT ?1, ?2, a.hash, a.node_id, NOW_MS FROM job_artifacts AS a
WHERE a.scope_id = ?1 AND a.repository_id = ?2 AND a.hash IN (SELECT value FROM json_each(?3)) AND a.body IS NULL
  AND IS_AT_REST AND NOT ARTIFACT_HELD
ON CONFLICT DO UPDATE SET noted_ms = excluded.noted_ms, is_done = 0

-- name: prune_artifacts
DELETE FROM job_artifacts AS a
WHERE a.scope_id = ?1 AND a.repository_id = ?2 AND a.hash IN (SELECT value FROM json_each(?3))
  AND IS_AT_REST AND NOT ARTIFACT_HELD

-- name: prune_removals
-- At most ?3 that are a week old: other nodes have removed their copies. One waits for its node, as long as that is a
-- member.
DELETE FROM artifact_removals WHERE OF_MESH AND (hash, node_id) IN (
    SELECT hash, node_id FROM artifact_removals
    WHERE OF_MESH AND noted_ms <= NOW_MS - 604800000
      AND (is_done OR node_id NOT IN (SELECT node_id FROM mesh_heartbeats WHERE OF_MESH))
    LIMIT ?3)

-- --- messages --------------------------------------------------------------------------------------------

-- part: MESSAGE_NEEDED
-- Whether the message m is still needed: one that can be delivered answers it or is of its thread, or its thread is one
-- of help that has not ended. The newest row stays: its number would be issued again.
(m.thread_id IN (
    SELECT thread_id FROM a2a_messages INDEXED BY a2a_messages_open
    WHERE OF_MESH AND ended_ms IS NULL AND thread_id IS NOT NULL)
OR m.message_uuid IN (
    SELECT reply_to FROM a2a_messages INDEXED BY a2a_messages_open
    WHERE OF_MESH AND ended_ms IS NULL AND reply_to IS NOT NULL)
OR m.thread_id IN (SELECT thread_id FROM help_threads WHERE OF_MESH AND ended_ms IS NULL)
OR m.id = (SELECT max(id) FROM a2a_messages))

-- part: MESSAGES_AFTER
-- Up to ?4 messages after ?3, with their ends only if they are in one of the states ?7.
(SELECT id, message_uuid, thread_id, msg_type, CAST(substr(hlc, 1, 13) AS INTEGER) AS sent_ms,
    iif(state IN (SELECT value FROM json_each(?7)), ended_ms, NULL) AS ended_ms
FROM a2a_messages NOT INDEXED WHERE id > ?3 AND OF_MESH ORDER BY id LIMIT ?4) AS m

-- name: messages
SELECT m.id, m.message_uuid, m.msg_type, m.sent_ms, m.ended_ms,
    iif(m.ended_ms <= ?5 OR m.id <= ?6, MESSAGE_NEEDED, 0), '[]'
FROM MESSAGES_AFTER ORDER BY m.id

-- name: messages_last
SELECT id FROM a2a_messages NOT INDEXED
WHERE OF_MESH AND ended_ms IS NOT NULL AND state IN (SELECT value FROM json_each(?6))
  AND (msg_type IN (SELECT value FROM json_each(?3))) <> ?4
ORDER BY id DESC LIMIT 1 OFFSET ?5

-- name: prune_messages
DELETE FROM a2a_messages WHERE id IN (
    SELECT m.id FROM json_each(?3) AS i
    CROSS JOIN a2a_messages AS m ON m.scope_id = ?1 AND m.repository_id = ?2 AND m.message_uuid = i.value
    WHERE m.ended_ms IS NOT NULL AND NOT MESSAGE_NEEDED)

-- --- inboxes, conflicts and nodes ------------------------------------------------------------------------

-- part: INBOX_NEEDED
-- Whether a message for the inbox b can still be delivered.
EXISTS (
    SELECT 1 FROM a2a_messages AS m INDEXED BY a2a_messages_open
    WHERE m.scope_id = ?1 AND m.repository_id = ?2 AND m.receiver_agent = b.receiver_agent AND m.ended_ms IS NULL)

-- name: inboxes
-- By when they were last received from. Rows of the same moment at the end of a page come with the next pass.
SELECT b.seen_ms, b.receiver_agent, '', b.seen_ms, b.seen_ms, b.seen_ms <= ?5 AND INBOX_NEEDED, '[]'
FROM a2a_inboxes AS b
WHERE b.scope_id = ?1 AND b.repository_id = ?2 AND b.seen_ms > ?3 AND typeof(b.seen_ms) = 'integer'
ORDER BY b.seen_ms LIMIT ?4

-- name: prune_inboxes
DELETE FROM a2a_inboxes AS b
WHERE b.scope_id = ?1 AND b.repository_id = ?2 AND b.receiver_agent IN (SELECT value FROM json_each(?3))
  AND NOT INBOX_NEEDED

-- part: RESOLVED_MS
CAST(round((julianday(resolved_at) - 2440587.5) * 86400000) AS INTEGER)

-- name: conflicts
-- By when they were resolved. Those of the same moment at the end of a page come with the next pass.
SELECT at_ms, conflict_id, table_name, at_ms, at_ms, 0, '[]'
FROM (SELECT conflict_id, table_name, RESOLVED_MS AS at_ms FROM occ_conflicts WHERE OF_MESH AND state = 'resolved')
WHERE at_ms > ?3 ORDER BY at_ms LIMIT ?4

-- name: conflicts_last
SELECT RESOLVED_MS AS at_ms FROM occ_conflicts
WHERE OF_MESH AND state = 'resolved' AND (table_name IN (SELECT value FROM json_each(?3))) <> ?4
ORDER BY at_ms DESC LIMIT 1 OFFSET ?5

-- name: prune_conflicts
DELETE FROM occ_conflicts
WHERE OF_MESH AND state = 'resolved' AND conflict_id IN (SELECT value FROM json_each(?3))

-- part: IS_GONE
-- Whether the node h has left, or has been silent for a day.
(h.left_ms IS NOT NULL OR h.last_seen_ms <= NOW_MS - 86400000)

-- part: NODE_NEEDED
-- Whether the node h is the owner, holds a job, or has the file of an artifact.
(h.node_id IN (SELECT node_id FROM mesh_owner WHERE OF_MESH)
OR h.node_id IN (SELECT claimer FROM jobs INDEXED BY jobs_held WHERE OF_MESH AND lease_until_ms IS NOT NULL)
OR h.node_id IN (SELECT node_id FROM job_artifacts WHERE OF_MESH AND body IS NULL))

-- name: nodes
-- By when they were last seen. Those of the same moment at the end of a page come with the next pass.
SELECT h.last_seen_ms, h.node_id, '', h.last_seen_ms, iif(h.left_ms IS NOT NULL OR h.last_seen_ms <= ?5 - 86400000,
    h.last_seen_ms, NULL), h.last_seen_ms <= ?5 AND NODE_NEEDED, '[]'
FROM mesh_heartbeats AS h
WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND h.last_seen_ms > ?3 AND typeof(h.last_seen_ms) = 'integer'
ORDER BY h.last_seen_ms LIMIT ?4

-- name: prune_nodes
-- Keys, entries, incarnation and version stay: the log is verified by them, and the node may come back.
DELETE FROM mesh_heartbeats AS h
WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND h.node_id IN (SELECT value FROM json_each(?3))
  AND IS_GONE AND NOT NODE_NEEDED

-- part: PRUNED_NODES
-- The nodes that are not members any more.
node_id IN (SELECT value FROM json_each(?3)) AND node_id NOT IN (SELECT node_id FROM mesh_heartbeats WHERE OF_MESH)

-- name: prune_vitals
DELETE FROM node_vitals WHERE OF_MESH AND PRUNED_NODES

-- name: prune_addresses
DELETE FROM node_addresses WHERE OF_MESH AND PRUNED_NODES

-- name: prune_witnesses
DELETE FROM clock_witnesses WHERE OF_MESH AND PRUNED_NODES

-- name: prune_pulses
DELETE FROM beat_pulses WHERE OF_MESH AND PRUNED_NODES

-- name: prune_agents
-- The agents that were last seen there.
DELETE FROM agent_presence WHERE OF_MESH AND PRUNED_NODES

-- --- rows without a policy -------------------------------------------------------------------------------
-- At most ?3 of them at once. What writes them prunes some of them, too; these are for what nothing is written to.

-- name: prune_keys
-- Idempotency keys of 90 days ago. Their writer prunes its own after a day: this one never came back.
DELETE FROM script_results WHERE OF_MESH AND script_key IN (
    SELECT script_key FROM script_results WHERE OF_MESH AND since_s < NOW_MS / 1000 - 7776000 LIMIT ?3)

-- name: prune_answers
-- Whose keys were pruned.
DELETE FROM script_answers WHERE OF_MESH AND (script_key, n) IN (
    SELECT a.script_key, a.n FROM script_answers AS a
    WHERE a.scope_id = ?1 AND a.repository_id = ?2 AND NOT EXISTS (
        SELECT 1 FROM script_results AS k
        WHERE k.scope_id = ?1 AND k.repository_id = ?2 AND k.script_key = a.script_key)
    LIMIT ?3)

-- name: prune_graph_writes
-- Of threads that have expired: nothing reads them any more.
DELETE FROM graph_writes WHERE id IN (
    SELECT w.id FROM conversations AS c
    CROSS JOIN graph_writes AS w ON w.scope_id = ?1 AND w.repository_id = ?2 AND w.thread_id = c.name
    WHERE c.scope_id = ?1 AND c.repository_id = ?2 AND c.kind = 'graph' AND c.expires_ms <= NOW_MS LIMIT ?3)

-- name: prune_graph_checkpoints
DELETE FROM graph_checkpoints WHERE id IN (
    SELECT k.id FROM conversations AS c
    CROSS JOIN graph_checkpoints AS k ON k.scope_id = ?1 AND k.repository_id = ?2 AND k.thread_id = c.name
    WHERE c.scope_id = ?1 AND c.repository_id = ?2 AND c.kind = 'graph' AND c.expires_ms <= NOW_MS LIMIT ?3)

-- name: prune_session_items
DELETE FROM session_items WHERE id IN (
    SELECT i.id FROM conversations AS c
    CROSS JOIN session_items AS i ON i.scope_id = ?1 AND i.repository_id = ?2 AND i.session_id = c.name
    WHERE c.scope_id = ?1 AND c.repository_id = ?2 AND c.kind = 'session' AND c.expires_ms <= NOW_MS LIMIT ?3)

-- name: prune_conversations
-- That have expired, when none of their rows is left.
DELETE FROM conversations WHERE OF_MESH AND (kind, name) IN (
    SELECT c.kind, c.name FROM conversations AS c
    WHERE c.scope_id = ?1 AND c.repository_id = ?2 AND c.expires_ms <= NOW_MS
      AND NOT EXISTS (
        SELECT 1 FROM graph_checkpoints AS k
        WHERE k.scope_id = ?1 AND k.repository_id = ?2 AND k.thread_id = c.name AND c.kind = 'graph')
      AND NOT EXISTS (
        SELECT 1 FROM graph_writes AS w
        WHERE w.scope_id = ?1 AND w.repository_id = ?2 AND w.thread_id = c.name AND c.kind = 'graph')
      AND NOT EXISTS (
        SELECT 1 FROM session_items AS i
        WHERE i.scope_id = ?1 AND i.repository_id = ?2 AND i.session_id = c.name AND c.kind = 'session')
    LIMIT ?3)

-- name: prune_tokens
DELETE FROM agent_tokens WHERE OF_MESH AND token_id IN (
    SELECT token_id FROM agent_tokens WHERE OF_MESH AND until_ms <= NOW_MS LIMIT ?3)

-- name: prune_approvals
-- A week after they have expired.
DELETE FROM approvals WHERE OF_MESH AND approval_id IN (
    SELECT approval_id FROM approvals INDEXED BY approvals_by_expiry
    WHERE OF_MESH AND expires_ms < NOW_MS - 604800000 LIMIT ?3)

-- name: prune_grants
-- A day after their end. The log keeps them.
DELETE FROM grants WHERE OF_MESH AND grant_id IN (
    SELECT grant_id FROM grants INDEXED BY grants_by_end
    WHERE OF_MESH AND until_ms IS NOT NULL AND until_ms <= NOW_MS - 86400000 LIMIT ?3)

-- part: GRANT_IS_OVER
-- Whether the grant of u is not in force any more.
NOT EXISTS (
    SELECT 1 FROM grants AS g
    WHERE g.scope_id = ?1 AND g.repository_id = ?2 AND g.grant_id = u.grant_id
      AND (g.until_ms IS NULL OR g.until_ms > NOW_MS))

-- name: prune_usage
-- Of grants that are over; and uses that no window has any more (the longest is 366 days), of items that have ended.
DELETE FROM grant_usage WHERE OF_MESH AND (grant_id, capability, kind, item) IN (
    SELECT u.grant_id, u.capability, u.kind, u.item FROM grant_usage AS u
    WHERE u.scope_id = ?1 AND u.repository_id = ?2
      AND (GRANT_IS_OVER OR u.used_ms <= NOW_MS - 31708800000 AND NOT (IS_OPEN))
    LIMIT ?3)

-- name: prune_reservations
DELETE FROM grant_reservations WHERE OF_MESH AND (job_id, grant_id) IN (
    SELECT u.job_id, u.grant_id FROM grant_reservations AS u
    WHERE u.scope_id = ?1 AND u.repository_id = ?2 AND NOT EXISTS (
        SELECT 1 FROM grants AS g
        WHERE g.scope_id = ?1 AND g.repository_id = ?2 AND g.grant_id = u.grant_id)
    LIMIT ?3)

-- name: prune_claims
-- Claims that the rate of their kind does not count any more, or of a kind without a rate.
DELETE FROM job_claims WHERE OF_MESH AND (kind, claimed_ms, job_id, claim_token) IN (
    SELECT c.kind, c.claimed_ms, c.job_id, c.claim_token FROM job_claims AS c
    WHERE c.scope_id = ?1 AND c.repository_id = ?2 AND NOT EXISTS (
        SELECT 1 FROM job_kinds AS k
        WHERE k.scope_id = ?1 AND k.repository_id = ?2 AND k.kind = c.kind AND c.claimed_ms > NOW_MS - k.rate_ms)
    LIMIT ?3)

-- name: prune_counts
-- Of kinds and states without jobs.
DELETE FROM job_counts WHERE OF_MESH AND (kind, state) IN (
    SELECT kind, state FROM job_counts WHERE OF_MESH AND jobs = 0 LIMIT ?3)

-- name: prune_key_requests
-- That the owner has not decided for 90 days. The node asks again when it starts.
DELETE FROM node_key_requests WHERE OF_MESH AND node_id IN (
    SELECT node_id FROM node_key_requests WHERE OF_MESH AND requested_ms <= NOW_MS - 7776000000 LIMIT ?3)

-- --- sizes ------------------------------------------------------------------------------------------------

-- name: has_sample
SELECT EXISTS (SELECT 1 FROM size_samples WHERE OF_MESH AND day >= ?3)

-- name: keep_sample
-- ?3: the day, ?4: a JSON object of the rows by table.
INSERT INTO size_samples (scope_id, repository_id, day, table_name, row_count, bytes)
SELECT ?1, ?2, ?3, key, value, 0 FROM json_each(?4) WHERE true
ON CONFLICT DO NOTHING

-- name: prune_samples
DELETE FROM size_samples WHERE OF_MESH AND day < ?3

-- name: samples
SELECT table_name, day, row_count FROM size_samples WHERE OF_MESH AND day >= ?3

-- name: bytes
-- With the indexes of each table.
SELECT s.tbl_name, sum(d.pgsize) FROM dbstat AS d CROSS JOIN sqlite_schema AS s ON s.name = d.name
WHERE d.aggregate = TRUE GROUP BY 1

-- name: changed
SELECT changes()
