-- Jobs that nodes have claimed on behalf of agents. `?1` is the scope, `?2` the repository.

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- part: IS_CURRENT
-- Whether the claim ?4 of the job ?3 is still held.
EXISTS (
    SELECT 1 FROM jobs AS j
    WHERE j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = ?3 AND j.claim_token = ?4
      AND j.lease_until_ms IS NOT NULL)

-- part: HELD_BY_AGENT
-- The unexpired claims on behalf of the agent ?3.
job_takes AS t CROSS JOIN jobs AS j
    ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = t.job_id AND j.claim_token = t.claim_token
    AND j.lease_until_ms >= NOW_MS
WHERE t.scope_id = ?1 AND t.repository_id = ?2 AND t.agent_id = ?3

-- name: refuse_if_over
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT IS_CURRENT

-- name: keep
-- ?5: an artifact, in place of one of the same name; ?6: how many there may be.
UPDATE job_takes SET artifacts = (
    SELECT json_group_array(json(value)) FROM (
        SELECT value FROM json_each(artifacts) WHERE value ->> 'name' <> ?5 ->> 'name'
        UNION ALL SELECT json(?5)))
WHERE OF_MESH AND job_id = ?3 AND claim_token = ?4 AND IS_CURRENT AND json_array_length(artifacts) <= ?6

-- part: IS_OVER
-- Whether the claim of a take has ended.
NOT EXISTS (
    SELECT 1 FROM jobs AS j
    WHERE j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = job_takes.job_id
      AND j.claim_token = job_takes.claim_token AND j.lease_until_ms IS NOT NULL)

-- name: is_any_over
SELECT EXISTS (SELECT 1 FROM job_takes WHERE OF_MESH AND IS_OVER)

-- name: forget
DELETE FROM job_takes WHERE OF_MESH AND IS_OVER

-- name: held_count
-- How many jobs the agent ?3 holds, through any node.
SELECT count(*) FROM HELD_BY_AGENT

-- name: refuse_over_capacity
-- ?4: how many it wants to hold at most. It must follow the claim.
INSERT INTO refusals (reason) SELECT 'refused' WHERE (SELECT count(*) FROM HELD_BY_AGENT) > ?4

-- name: has_successor
-- Whether the agent ?3 holds a job that waited for the job ?4.
SELECT EXISTS (SELECT 1 FROM HELD_BY_AGENT AND EXISTS (
    SELECT 1 FROM job_predecessors AS d
    WHERE d.scope_id = ?1 AND d.repository_id = ?2 AND d.job_id = t.job_id AND d.predecessor = ?4))

-- name: logged_chars
-- How much the attempt ?4 at the job ?3 has logged.
SELECT coalesce(sum(length(text)), 0) FROM job_logs WHERE OF_MESH AND job_id = ?3 AND claim_token = ?4
