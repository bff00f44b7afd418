-- Jobs whose abort concerns others. `?1` is the scope, `?2` the repository.

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- name: note
INSERT INTO job_cleanups (scope_id, repository_id, job_id) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING

-- name: forget
DELETE FROM job_cleanups WHERE OF_MESH AND job_id = ?3

-- name: aborted
-- Up to ?4 of them after the id ?3, in order. Rows whose id is none name no job.
SELECT c.job_id FROM job_cleanups AS c
CROSS JOIN jobs AS j ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = c.job_id
WHERE c.scope_id = ?1 AND c.repository_id = ?2 AND c.job_id > ?3 AND j.state = 'aborted'
    AND typeof(c.job_id) = 'text' AND length(c.job_id) = 64 AND c.job_id NOT GLOB '*[^0-9a-f]*'
ORDER BY c.job_id LIMIT ?4

-- part: IS_OVER
EXISTS (
    SELECT 1 FROM jobs AS j WHERE j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = job_cleanups.job_id
      AND j.state IN ('succeeded', 'failed'))

-- name: is_any_over
SELECT EXISTS (SELECT 1 FROM job_cleanups WHERE OF_MESH AND IS_OVER)

-- name: forget_over
DELETE FROM job_cleanups WHERE OF_MESH AND IS_OVER
