-- Jobs that are bound to the rhythm. Older nodes bind none, and claim bound ones at any time.
-- if-missing: jobs.binding
ALTER TABLE jobs ADD COLUMN binding TEXT;

CREATE INDEX IF NOT EXISTS jobs_bound ON jobs (scope_id, repository_id, binding)
WHERE state = 'pending' AND binding IS NOT NULL;
