-- The settings of job kinds. `?1` is the scope, `?2` the repository, `?3` the kind.

-- name: pause
INSERT INTO job_kinds (scope_id, repository_id, kind, is_paused) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT DO UPDATE SET is_paused = excluded.is_paused

-- name: audit
INSERT INTO job_kinds (scope_id, repository_id, kind, is_audited) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT DO UPDATE SET is_audited = excluded.is_audited

-- name: limit
-- ?4: the columns as a JSON object; others are unchanged.
INSERT INTO job_kinds (scope_id, repository_id, kind, max_running, rate, rate_ms, lease_ms)
VALUES (?1, ?2, ?3, ?4 ->> 'max_running', ?4 ->> 'rate', ?4 ->> 'rate_ms', ?4 ->> 'lease_ms')
ON CONFLICT DO UPDATE SET
    max_running = iif(json_type(?4, '$.max_running') IS NULL, max_running, excluded.max_running),
    rate = iif(json_type(?4, '$.rate') IS NULL, rate, excluded.rate),
    rate_ms = iif(json_type(?4, '$.rate_ms') IS NULL, rate_ms, excluded.rate_ms),
    lease_ms = iif(json_type(?4, '$.lease_ms') IS NULL, lease_ms, excluded.lease_ms)
