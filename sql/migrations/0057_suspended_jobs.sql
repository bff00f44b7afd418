-- Suspended jobs, which are counted. They can be woken early: older nodes would take the rows of such jobs for damaged, so
-- that none is woken while one of them is alive.
CREATE INDEX IF NOT EXISTS jobs_suspended ON jobs (scope_id, repository_id, kind, not_before_ms, waits)
WHERE state = 'pending' AND attempts > 0 AND (waits > 0 OR reason = 'it sleeps');
