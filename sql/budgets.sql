-- Budgets and spending. `?1` is the scope, `?2` the repository.

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- name: record
-- The ends of phrases (?5), each once. ?3: the node, ?4: its time.
WITH given AS MATERIALIZED (SELECT value AS v FROM json_each(?5))
INSERT INTO phrase_ends (
    scope_id, repository_id, node_id, hlc, phrase_id, agent_id, task_id, job_id, account, attempt, outcome, beats,
    waited, overruns, first_useful_ms, resources, bu, cost, note, window_ms, began_ms, ended_ms)
SELECT ?1, ?2, ?3, ?4, v ->> 0, v ->> 1, v ->> 2, v ->> 3, v ->> 4, v ->> 5, v ->> 6,
    v ->> 7, v ->> 8, v ->> 9, v ->> 10, v ->> 11, v ->> 12, v ->> 13, v ->> 14,
    v ->> 15, v ->> 16, v ->> 17
FROM given WHERE true
ON CONFLICT DO NOTHING

-- name: set
-- ?6: whether earlier spending is reset.
INSERT INTO budgets (scope_id, repository_id, subject, document, hlc, since_ms) VALUES (?1, ?2, ?3, ?4, ?5, NOW_MS)
ON CONFLICT DO UPDATE SET document = excluded.document, hlc = excluded.hlc,
    since_ms = iif(?6, excluded.since_ms, since_ms), spent_bu = iif(?6, 0, spent_bu)

-- name: remove
DELETE FROM budgets WHERE OF_MESH AND subject = ?3

-- name: set_budgets
SELECT subject, document, since_ms FROM budgets WHERE OF_MESH AND (?3 IS NULL OR subject = ?3) ORDER BY subject

-- name: standing
SELECT subject, document, since_ms, spent_bu AS bu, (
    SELECT json_group_object(CAST(l.resource AS TEXT), CAST(l.spent AS INTEGER)) FROM spend_limits AS l
    WHERE l.scope_id = ?1 AND l.repository_id = ?2 AND l.subject = budgets.subject) AS spent
FROM budgets WHERE OF_MESH

-- name: spent_on_job
-- The use of earlier attempts at a job, and the start of the first.
SELECT total(bu) AS bu, min(began_ms) AS began_ms FROM phrase_ends INDEXED BY phrase_ends_of_job
WHERE OF_MESH AND job_id = ?3

-- name: begin
-- An attempt at a job; ignored after its end.
INSERT INTO phrase_begins (
    scope_id, repository_id, job_id, phrase_id, claim_token, agent_id, account, role, attempt, began_ms
)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10
WHERE NOT EXISTS (SELECT 1 FROM phrase_ends WHERE OF_MESH AND phrase_id = ?4)
ON CONFLICT DO NOTHING

-- name: begun
SELECT phrase_id, began_ms FROM phrase_begins WHERE OF_MESH AND job_id = ?3 AND claim_token = ?4
ORDER BY began_ms LIMIT 1

-- name: lost
-- Attempts whose job is not held, or held by another attempt: of the job ?3, which begins again; and of all other
-- jobs whose lease ended before ?4, so that an attempt that is only late has recorded its end. Up to ?5 of them.
SELECT b.job_id, b.phrase_id, b.agent_id, b.account, b.role, b.attempt, b.began_ms,
    coalesce(b.lease_until_ms, j.ended_ms, b.began_ms) AS ended_ms, j.state IS 'succeeded' AS is_done
FROM phrase_begins AS b
LEFT JOIN jobs AS j ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = b.job_id
    AND j.claim_token = b.claim_token
WHERE b.scope_id = ?1 AND b.repository_id = ?2 AND j.lease_until_ms IS NULL
  AND (b.job_id = ?3 OR coalesce(b.lease_until_ms, j.ended_ms, b.began_ms) < ?4) LIMIT ?5

-- part: COUNTED
-- Every end twice: for the agent, and for the account; and the phrases that are only counted; from the start of the subject's budget, or from ?4 on.
(
    SELECT 'agent:' || agent_id AS subject, ended_ms, 1 AS phrases, bu, cost, resources FROM phrase_ends WHERE OF_MESH
    UNION ALL
    SELECT 'account:' || account, ended_ms, 1, bu, cost, resources FROM phrase_ends WHERE OF_MESH AND account <> ''
    UNION ALL
    SELECT 'agent:' || agent_id, window_ms, done, bu, cost, json_object('cpu_sec', cpu_sec) FROM job_tallies
    WHERE OF_MESH AND is_scored
) AS e
LEFT JOIN budgets AS b ON b.scope_id = ?1 AND b.repository_id = ?2 AND b.subject = e.subject

-- part: FROM_WHEN
(?3 IS NULL OR e.subject = ?3) AND e.ended_ms >= coalesce(?4, b.since_ms, 0)

-- name: spent
SELECT e.subject, sum(e.phrases) AS phrases, sum(e.bu) AS bu, sum(e.cost) AS cost
FROM COUNTED WHERE FROM_WHEN GROUP BY e.subject ORDER BY e.subject

-- name: used
-- The resources, by class of device if reported so.
SELECT e.subject, p.key AS name, iif(p.type = 'object', c.key, '') AS device, sum(c.atom) AS amount
FROM COUNTED CROSS JOIN json_each(iif(json_valid(e.resources), e.resources, '{}')) AS p
CROSS JOIN json_each(iif(p.type = 'object', p.value, json_array(p.atom))) AS c
WHERE FROM_WHEN GROUP BY e.subject, p.key, device
