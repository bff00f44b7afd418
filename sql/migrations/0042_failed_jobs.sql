-- Failed jobs by the time of their failure, and the retries of jobs: whether a failure still needs attention.
CREATE INDEX IF NOT EXISTS jobs_failed ON jobs (scope_id, repository_id, ended_ms) WHERE state = 'failed';
CREATE INDEX IF NOT EXISTS jobs_retries ON jobs (scope_id, repository_id, retry_of) WHERE retry_of IS NOT NULL;
