-- Questions of jobs. `?1` is the scope, `?2` the repository.

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- part: QUESTION
job_id, question_id, asked_by, asked_of, asked_ms, expires_ms, escalate_to, escalate_ms, question, answered_by

-- name: of_job
SELECT QUESTION FROM job_questions WHERE OF_MESH AND job_id = ?3

-- name: open
-- Those without an answer, the oldest first: of the agent ?3, or of all; up to ?4.
SELECT QUESTION FROM job_questions
WHERE OF_MESH AND answered_by IS NULL AND (?3 IS NULL OR asked_of = ?3) ORDER BY asked_ms, job_id LIMIT ?4

-- name: refuse_unless_open
-- ?3: the job, ?4: the question. Also one whose time is over is not answered any more.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM job_questions AS q
    CROSS JOIN jobs AS j ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = q.job_id AND j.state = 'pending'
    WHERE q.scope_id = ?1 AND q.repository_id = ?2 AND q.job_id = ?3 AND q.question_id = ?4
      AND q.answered_by IS NULL AND coalesce(q.expires_ms, NOW_MS) >= NOW_MS)

-- name: answer
-- ?5: who answers.
UPDATE job_questions SET answered_by = ?5 WHERE OF_MESH AND job_id = ?3 AND question_id = ?4

-- name: due
-- The questions whose time is over, or which are to be passed on: before ?3, up to ?4.
SELECT QUESTION FROM job_questions
WHERE OF_MESH AND answered_by IS NULL AND (expires_ms < ?3 OR escalate_ms < ?3) LIMIT ?4

-- name: refuse_unless_due
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM job_questions WHERE OF_MESH AND job_id = ?3 AND question_id = ?4 AND answered_by IS NULL
      AND escalate_ms < NOW_MS)

-- name: escalate
UPDATE job_questions SET asked_of = escalate_to, escalate_ms = NULL
WHERE OF_MESH AND job_id = ?3 AND question_id = ?4

-- part: IS_OVER
EXISTS (
    SELECT 1 FROM jobs AS j WHERE j.scope_id = ?1 AND j.repository_id = ?2
      AND j.job_id = job_questions.job_id AND j.ended_ms IS NOT NULL)

-- name: is_any_over
SELECT EXISTS (SELECT 1 FROM job_questions WHERE OF_MESH AND IS_OVER)

-- name: forget
-- Those of jobs that have ended: the log has them.
DELETE FROM job_questions WHERE OF_MESH AND IS_OVER
