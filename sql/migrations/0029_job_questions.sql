-- Questions of jobs. Older nodes ask and answer none; a job with a question waits for an op, as they know it.
CREATE TABLE IF NOT EXISTS job_questions (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    question_id   TEXT    NOT NULL,  -- the op that will answer it
    asked_by      TEXT    NOT NULL,  -- the agent or node whose attempt asks
    asked_of      TEXT,              -- the agent that is asked; NULL: any
    asked_ms      INTEGER NOT NULL,
    expires_ms    INTEGER,
    escalate_to   TEXT,
    escalate_ms   INTEGER,
    question      TEXT    NOT NULL,
    answered_by   TEXT,              -- NULL: not answered; the answer is in the op
    PRIMARY KEY (scope_id, repository_id, job_id)
) WITHOUT ROWID;

-- The op that started the attempt of an agent: a renewal changes the last op of the job.
-- if-missing: job_takes.start_op
ALTER TABLE job_takes ADD COLUMN start_op TEXT;
