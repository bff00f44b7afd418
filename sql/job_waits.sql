-- What suspended jobs wait for by an op of their own. `?1` is the scope, `?2` the repository.

-- from messages: RECORD

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- part: OF_JOB
scope_id = ?1 AND repository_id = ?2 AND job_id = ?3

-- part: IS_FREE
-- Whether the message m has not ended, and no consumer has it.
m.ended_ms IS NULL AND coalesce(m.claim_until_ms, 0) <= NOW_MS AND coalesce(m.expires_ms > NOW_MS, 1)

-- part: IS_READABLE
-- Whether the ids of w are what nodes write: others name no job and no op.
(typeof(w.job_id) = 'text' AND length(w.job_id) = 64 AND w.job_id NOT GLOB '*[^0-9a-f]*'
    AND typeof(w.wake_op) = 'text' AND length(w.wake_op) = 26 AND w.wake_op < '8'
    AND w.wake_op NOT GLOB '*[^0-9A-HJKMNP-TV-Z]*')

-- name: forget
DELETE FROM job_waits WHERE OF_JOB

-- name: record
-- ?4: the op that wakes the job ?3, ?5: rows in the order of the columns from `until_ms` on.
INSERT INTO job_waits (
    scope_id, repository_id, job_id, n, wake_op, until_ms, awaited_job, thread_id, msg_type, receiver, after_id)
SELECT ?1, ?2, ?3, i.key + 1, ?4, i.value ->> 0, i.value ->> 1, i.value ->> 2, i.value ->> 3, i.value ->> 4,
    i.value ->> 5
FROM json_each(?5) AS i

-- part: IS_OVER
-- Whether the job of w has ended, or was woken.
(EXISTS (
    SELECT 1 FROM jobs AS j WHERE j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = w.job_id
      AND j.ended_ms IS NOT NULL)
OR EXISTS (
    SELECT 1 FROM agent_oplog AS o WHERE o.scope_id = ?1 AND o.repository_id = ?2 AND o.op_id = w.wake_op
      AND o.accepted = 1))

-- name: due
-- The jobs, up to ?4, of which a wait is over at ?3, each with the op that wakes it.
SELECT DISTINCT w.job_id, w.wake_op FROM job_waits AS w
WHERE w.scope_id = ?1 AND w.repository_id = ?2 AND IS_READABLE AND (
    w.until_ms <= ?3
    OR (w.thread_id IS NOT NULL AND EXISTS (
        SELECT 1 FROM a2a_messages AS m INDEXED BY a2a_messages_of_thread
        WHERE m.scope_id = ?1 AND m.repository_id = ?2 AND m.thread_id = w.thread_id AND m.id > w.after_id
          AND m.receiver_agent = coalesce(w.receiver, m.receiver_agent)
          AND m.msg_type = coalesce(w.msg_type, m.msg_type) AND IS_FREE))
    OR (w.thread_id IS NULL AND w.receiver IS NOT NULL AND EXISTS (
        SELECT 1 FROM a2a_messages AS m INDEXED BY a2a_messages_open
        WHERE m.scope_id = ?1 AND m.repository_id = ?2 AND m.receiver_agent = w.receiver AND m.id > w.after_id
          AND m.msg_type = coalesce(w.msg_type, m.msg_type) AND IS_FREE))
    OR (w.awaited_job IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM job_waits AS o
        CROSS JOIN jobs AS j ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = o.awaited_job
        WHERE o.scope_id = ?1 AND o.repository_id = ?2 AND o.job_id = w.job_id AND j.ended_ms IS NULL)))
LIMIT ?4

-- name: is_any_over
SELECT EXISTS (SELECT 1 FROM job_waits AS w WHERE w.scope_id = ?1 AND w.repository_id = ?2 AND IS_OVER)

-- name: forget_over
DELETE FROM job_waits WHERE OF_MESH AND (job_id, n) IN (
    SELECT w.job_id, w.n FROM job_waits AS w WHERE w.scope_id = ?1 AND w.repository_id = ?2 AND IS_OVER)

-- --- waking early ----------------------------------------------------------------------------------------

-- part: IS_UNMET
-- Whether the dependency d is unmet.
(CASE d.awaited
    WHEN 'op' THEN NOT EXISTS (
        SELECT 1 FROM agent_oplog AS o WHERE o.scope_id = ?1 AND o.repository_id = ?2
          AND o.op_id = d.predecessor AND o.accepted = 1)
    ELSE NOT EXISTS (
        SELECT 1 FROM jobs AS p WHERE p.scope_id = ?1 AND p.repository_id = ?2 AND p.job_id = d.predecessor
          AND (p.state = 'succeeded' OR (p.ended_ms IS NOT NULL AND d.awaited = 'end')))
    END)

-- name: is_asking
-- Whether the job waits for an answer.
SELECT EXISTS (
    SELECT 1 FROM job_questions AS q
    CROSS JOIN job_predecessors AS d ON d.scope_id = ?1 AND d.repository_id = ?2 AND d.job_id = ?3
      AND d.predecessor = q.question_id AND d.awaited = 'op'
    WHERE q.scope_id = ?1 AND q.repository_id = ?2 AND q.job_id = ?3 AND IS_UNMET)

-- name: refuse_unless_suspended
-- ?4: the claim token of the attempt that has suspended the job.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM jobs WHERE OF_JOB AND state = 'pending' AND attempts > 0 AND claim_token = ?4)

-- name: unlink_unmet
-- What a suspended job still waits for came with its suspension.
DELETE FROM job_predecessors AS d
WHERE d.scope_id = ?1 AND d.repository_id = ?2 AND d.job_id = ?3 AND IS_UNMET

-- name: wake_early
-- ?4: the op, by which its attempt finds what is over, ?5: the time.
UPDATE jobs SET waits = 0, not_before_ms = min(not_before_ms, ?5) WHERE OF_JOB

-- name: link_early_wake
INSERT INTO job_predecessors (scope_id, repository_id, job_id, predecessor, awaited) VALUES (?1, ?2, ?3, ?4, 'op')

-- name: early_wakes
-- The last ops, up to ?4, that woke the job early.
SELECT d.predecessor FROM job_predecessors AS d
CROSS JOIN agent_oplog AS o ON o.scope_id = ?1 AND o.repository_id = ?2 AND o.op_id = d.predecessor
WHERE d.scope_id = ?1 AND d.repository_id = ?2 AND d.job_id = ?3 AND d.awaited = 'op'
  AND o.kind = 'WakeJobEarly' AND o.accepted = 1
ORDER BY o.id DESC LIMIT ?4

-- --- messages --------------------------------------------------------------------------------------------

-- part: IS_OURS_OR_FREE
-- ?6: the claim in question.
(m.claim_owner = ?6 OR coalesce(m.claim_until_ms, 0) <= NOW_MS)
AND m.ended_ms IS NULL AND coalesce(m.expires_ms > NOW_MS, 1)

-- name: of_thread
-- The messages after ?7 in the thread ?3, of the type ?4 and to the receiver ?5 if they are given, up to ?8.
SELECT RECORD FROM a2a_messages AS m INDEXED BY a2a_messages_of_thread
WHERE OF_MESH AND thread_id = ?3 AND msg_type = coalesce(?4, msg_type)
  AND receiver_agent = coalesce(?5, receiver_agent) AND IS_OURS_OR_FREE AND id > ?7
ORDER BY id LIMIT ?8

-- name: to_receiver
-- The same in any thread. ?3 is not used.
SELECT RECORD FROM a2a_messages AS m INDEXED BY a2a_messages_open
WHERE OF_MESH AND ?3 IS NULL AND receiver_agent = ?5 AND msg_type = coalesce(?4, msg_type)
  AND IS_OURS_OR_FREE AND id > ?7
ORDER BY id LIMIT ?8

-- name: claim_message
-- ?3: the message, ?4: the claim, ?5: for how long.
UPDATE a2a_messages SET state = 'delivered', claim_owner = ?4, claim_until_ms = NOW_MS + ?5
WHERE OF_MESH AND message_uuid = ?3 AND ended_ms IS NULL
  AND (claim_owner = ?4 OR coalesce(claim_until_ms, 0) <= NOW_MS)

-- name: refuse_unless_claimed
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM a2a_messages
    WHERE OF_MESH AND message_uuid = ?3 AND claim_owner = ?4 AND ended_ms IS NULL)

-- name: ack_message
UPDATE a2a_messages SET state = 'acked', acknowledged = 1, claim_until_ms = NULL, ended_ms = NOW_MS
WHERE OF_MESH AND message_uuid = ?3 AND claim_owner = ?4
