-- What suspended jobs wait for by an op of their own. Older nodes write none and wake no job; a job with such waits has
-- the op as a predecessor, as they know it.
CREATE TABLE IF NOT EXISTS job_waits (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    n             INTEGER NOT NULL,
    wake_op       TEXT    NOT NULL,  -- the op that wakes the job, whichever of its waits is over first
    until_ms      INTEGER,           -- when it is over at the latest
    awaited_job   TEXT,              -- its waits for jobs are over when all of these have ended
    thread_id     TEXT,
    msg_type      TEXT,
    receiver      TEXT,              -- a wait for a message has a thread, a receiver, or both
    after_id      INTEGER NOT NULL DEFAULT 0,  -- messages up to this one were looked at, and are not believed
    PRIMARY KEY (scope_id, repository_id, job_id, n)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS job_waits_until ON job_waits (scope_id, repository_id, until_ms)
WHERE until_ms IS NOT NULL;
