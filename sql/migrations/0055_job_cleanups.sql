-- Jobs whose abort concerns others: compensations run, and jobs that their steps wait for are aborted. Older nodes do
-- neither, and would run a compensating job from its beginning: none is scheduled while one of them is alive.
CREATE TABLE IF NOT EXISTS job_cleanups (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    PRIMARY KEY (scope_id, repository_id, job_id)
) WITHOUT ROWID;
