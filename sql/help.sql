-- Help threads: who asked, what was promised, and the result.
--
-- A thread is open until its time is over by the database's clock, whether a node has closed it yet or not. From
-- then on it accepts nothing, so its result is the same whichever node closes it.

-- part: THIS
scope_id = ?1 AND repository_id = ?2 AND thread_id = ?3

-- part: THREAD
thread_id, asker, task_id, asked_ms, closes_ms, state, helper, promise_beats, confidence, fail_after_beats, on_fail,
promised_ms, due_ms, ended_ms, answer_id,
(SELECT CAST(m.receiver_agent AS TEXT) FROM a2a_messages AS m
 WHERE m.scope_id = ?1 AND m.repository_id = ?2 AND m.message_uuid = help_threads.thread_id)

-- name: ask
INSERT INTO help_threads (scope_id, repository_id, thread_id, asker, task_id, state, asked_ms, closes_ms)
VALUES (?1, ?2, ?3, ?4, ?5, 'asked', ?6, ?7)

-- name: refuse_unless_open
-- For every message to the asker. ?4: who asked, ?5: who speaks; after a promise, only the helper may. ?6: the
-- states in which it is allowed.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM help_threads
    WHERE THIS AND asker = ?4 AND coalesce(helper, ?5) = ?5 AND closes_ms > NOW_MS
      AND state IN (SELECT value FROM json_each(?6)))

-- name: promise
UPDATE help_threads SET
    state = 'promised', helper = ?4, promise_beats = ?5, confidence = ?6, fail_after_beats = ?7, on_fail = ?8,
    promised_ms = NOW_MS, due_ms = ?9, closes_ms = ?10
WHERE THIS

-- name: answer
-- ?5: the message with the answer.
UPDATE help_threads SET
    state = iif(due_ms IS NULL OR NOW_MS <= due_ms, 'kept', 'broken'), helper = ?4, answer_id = ?5, ended_ms = NOW_MS
WHERE THIS

-- name: withdraw
UPDATE help_threads SET state = 'broken', ended_ms = NOW_MS WHERE THIS

-- name: due
-- Threads whose time is over, and that are not closed. ?3: the time, as the caller knows it.
SELECT THREAD FROM help_threads
WHERE scope_id = ?1 AND repository_id = ?2 AND ended_ms IS NULL AND closes_ms <= ?3
ORDER BY closes_ms LIMIT ?4

-- name: refuse_unless_due
-- ?4: the state as read.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM help_threads WHERE THIS AND state = ?4 AND ended_ms IS NULL AND closes_ms <= NOW_MS)

-- name: close
-- It ended when its time was over, not when that was noticed. ?4: the result.
UPDATE help_threads SET state = ?4, ended_ms = closes_ms WHERE THIS

-- name: thread
SELECT THREAD FROM help_threads WHERE THIS

-- name: listed
-- Threads in the state ?3, if given, with ids below ?4, if given; the newest ?5 first.
SELECT THREAD FROM help_threads
WHERE scope_id = ?1 AND repository_id = ?2 AND state = coalesce(?3, state) AND thread_id < coalesce(?4, '~')
ORDER BY thread_id DESC LIMIT ?5

-- name: take
-- The messages of a thread to its asker, who has the result by now; claimed ones stay. ?4: the asker.
UPDATE a2a_messages SET state = 'acked', acknowledged = 1, claim_until_ms = NULL, ended_ms = NOW_MS
WHERE THIS AND receiver_agent = ?4 AND ended_ms IS NULL AND coalesce(claim_until_ms, 0) <= NOW_MS

-- name: counts
-- The results of the threads that ended in a time. ?3: from when, ?4: until before when.
SELECT
    coalesce(sum(state = 'kept'), 0) AS kept, coalesce(sum(state = 'broken'), 0) AS broken,
    coalesce(sum(state = 'expired'), 0) AS expired, coalesce(sum(state = 'unanswered'), 0) AS unanswered
FROM help_threads
WHERE scope_id = ?1 AND repository_id = ?2 AND ended_ms IS NOT NULL AND ended_ms >= ?3 AND ended_ms < ?4
