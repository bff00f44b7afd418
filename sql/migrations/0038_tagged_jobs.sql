-- Pending jobs with tags. Older nodes refuse manifests with tags, and claim such jobs whatever their tags are.
CREATE INDEX IF NOT EXISTS jobs_tagged ON jobs (scope_id, repository_id)
WHERE state = 'pending' AND instr(manifest, '"tags":[') > 0;
