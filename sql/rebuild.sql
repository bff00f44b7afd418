-- Job rows compared with the log that they follow from: read page by page, and repaired.

-- name: page
-- ?3: after this one, ?4: how many. Each row has the end of the log at the moment of the page; a page without jobs
-- is a row without a job.
SELECT m.last_id, j.id, j.job_id, j.ulid, j.kind, j.state, j.priority, j.waits, j.not_before_ms, j.max_attempts,
    j.max_interruptions, j.backoff_ms, j.lease_ms, j.claimer, j.claim_token, j.lease_until_ms, j.attempts, j.failures,
    j.interruptions, j.created_ms, j.started_ms, j.ended_ms, j.exit_code, j.reason, j.output_artifacts, j.retry_of, j.scheduled_by, j.seed,
    j.last_op, j.binding, j.manifest, (
        SELECT json_group_array(json_array(d.predecessor, d.awaited)) FROM job_predecessors AS d
        WHERE d.scope_id = ?1 AND d.repository_id = ?2 AND d.job_id = j.job_id
    ) AS after
FROM (
    SELECT coalesce(max(id), 0) AS last_id FROM (
        SELECT id FROM agent_oplog NOT INDEXED WHERE scope_id = ?1 AND repository_id = ?2
        ORDER BY id DESC LIMIT 1)
) AS m
LEFT JOIN (
    SELECT * FROM jobs NOT INDEXED WHERE scope_id = ?1 AND repository_id = ?2 AND id > ?3
    ORDER BY id LIMIT ?4
) AS j ON true
ORDER BY j.id

-- name: rewrite
-- ?3: a row as it should be; ?4 and ?5: its last op and its unmet dependencies as read. If it has changed since,
-- it is left alone.
UPDATE jobs SET
    ulid = ?3 ->> 'ulid', kind = ?3 ->> 'kind', state = ?3 ->> 'state', priority = ?3 ->> 'priority',
    waits = ?3 ->> 'waits', not_before_ms = ?3 ->> 'not_before_ms', max_attempts = ?3 ->> 'max_attempts',
    max_interruptions = ?3 ->> 'max_interruptions', interruptions = ?3 ->> 'interruptions',
    backoff_ms = ?3 ->> 'backoff_ms', lease_ms = ?3 ->> 'lease_ms', claimer = ?3 ->> 'claimer',
    claim_token = ?3 ->> 'claim_token', lease_until_ms = ?3 ->> 'lease_until_ms',
    attempts = ?3 ->> 'attempts', failures = ?3 ->> 'failures', created_ms = ?3 ->> 'created_ms',
    started_ms = ?3 ->> 'started_ms', ended_ms = ?3 ->> 'ended_ms', exit_code = ?3 ->> 'exit_code',
    reason = ?3 ->> 'reason', output_artifacts = ?3 ->> 'output_artifacts', retry_of = ?3 ->> 'retry_of',
    scheduled_by = ?3 ->> 'scheduled_by', seed = ?3 ->> 'seed', last_op = ?3 ->> 'last_op',
    binding = ?3 ->> 'binding', manifest = ?3 ->> 'manifest'
WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?3 ->> 'job_id' AND last_op = ?4 AND waits = ?5

-- name: create
-- ?3: a row that is missing, ?4: the job that came before it. It gets the next id that is free after that one's:
-- its own, if it is not taken.
INSERT INTO jobs (
    id, scope_id, repository_id, job_id, ulid, kind, state, priority, waits, not_before_ms, max_attempts,
    max_interruptions, backoff_ms, lease_ms, claimer, claim_token, lease_until_ms, attempts, failures, interruptions,
    created_ms, started_ms, ended_ms, exit_code, reason, output_artifacts, retry_of, scheduled_by, seed, last_op, binding,
    manifest
)
SELECT iif(EXISTS (SELECT 1 FROM jobs WHERE id = b.id + 1), (
        SELECT f.id + 1 FROM jobs AS f NOT INDEXED
        WHERE f.id > b.id AND NOT EXISTS (SELECT 1 FROM jobs AS g WHERE g.id = f.id + 1)
        ORDER BY f.id LIMIT 1
    ), b.id + 1), ?1, ?2,
    ?3 ->> 'job_id', ?3 ->> 'ulid', ?3 ->> 'kind', ?3 ->> 'state', ?3 ->> 'priority', ?3 ->> 'waits',
    ?3 ->> 'not_before_ms', ?3 ->> 'max_attempts', ?3 ->> 'max_interruptions', ?3 ->> 'backoff_ms', ?3 ->> 'lease_ms',
    ?3 ->> 'claimer', ?3 ->> 'claim_token', ?3 ->> 'lease_until_ms', ?3 ->> 'attempts', ?3 ->> 'failures',
    ?3 ->> 'interruptions', ?3 ->> 'created_ms',
    ?3 ->> 'started_ms', ?3 ->> 'ended_ms', ?3 ->> 'exit_code', ?3 ->> 'reason', ?3 ->> 'output_artifacts',
    ?3 ->> 'retry_of', ?3 ->> 'scheduled_by', ?3 ->> 'seed', ?3 ->> 'last_op', ?3 ->> 'binding',
    ?3 ->> 'manifest'
FROM (
    SELECT coalesce(max(id), 0) AS id FROM jobs WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?4
) AS b
WHERE true
ON CONFLICT (scope_id, repository_id, job_id) DO NOTHING

-- name: unlink
DELETE FROM job_predecessors WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?3

-- name: link
-- ?4: pairs of a predecessor and its awaited end.
INSERT INTO job_predecessors (scope_id, repository_id, job_id, predecessor, awaited)
SELECT ?1, ?2, ?3, value ->> 0, value ->> 1 FROM json_each(?4)

-- name: forget_counts
DELETE FROM job_counts WHERE scope_id = ?1 AND repository_id = ?2

-- name: count
INSERT INTO job_counts (scope_id, repository_id, kind, state, jobs)
SELECT ?1, ?2, kind, state, count(*) FROM jobs WHERE scope_id = ?1 AND repository_id = ?2 GROUP BY kind, state
