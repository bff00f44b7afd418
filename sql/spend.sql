-- Tokens and money: what attempts reserve, what they have used, and the sums. `?1` is the scope, `?2` the repository.

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- part: RESERVED
-- What running attempts have reserved of the limit l.
(SELECT coalesce(sum(r.amount), 0) FROM spend_reservations AS r
CROSS JOIN jobs AS h ON h.scope_id = ?1 AND h.repository_id = ?2 AND h.job_id = r.job_id
    AND h.claim_token = r.claim_token AND h.lease_until_ms IS NOT NULL
WHERE r.scope_id = ?1 AND r.repository_id = ?2 AND r.subject = l.subject AND r.resource = l.resource)

-- part: BUDGET_OF
-- The budget in the manifest of a job.
coalesce(iif(json_valid(j.manifest), j.manifest, '{}') -> '$.budget', '{}')

-- part: NEED
-- How much of the limit l an attempt at a job reserves, whose budget is own.budget: as it says, or as much as it may
-- use at most, or what the limit says.
max(0, CAST(coalesce(
    CASE WHEN substr(l.resource, 1, 6) <> 'money:'
        THEN coalesce(own.budget -> 'reserve' ->> l.resource, own.budget ->> ('max_' || l.resource))
        WHEN substr(coalesce(own.budget ->> '$.reserve.money', own.budget ->> 'max_money'), -3) = substr(l.resource, 7)
        THEN round(CAST(coalesce(own.budget ->> '$.reserve.money', own.budget ->> 'max_money') AS REAL) * 1000000)
    END, l.reserve) AS INTEGER))

-- part: LIMITED_BY
-- Whether the limit l is one of the agent ?8 or of the account in a job's budget, own.budget.
l.scope_id = ?1 AND l.repository_id = ?2
AND l.subject IN ('agent:' || ?8, 'account:' || (own.budget ->> 'charge_to'))

-- part: HAS_LIMITS
EXISTS (SELECT 1 FROM spend_limits WHERE OF_MESH)

-- part: IS_UNLIMITED
-- Whether no limit applies to the job j, for the agent ?8. Most meshes have none.
(NOT HAS_LIMITS OR NOT EXISTS (
    SELECT 1 FROM (SELECT BUDGET_OF AS budget) AS own CROSS JOIN spend_limits AS l WHERE LIMITED_BY))

-- part: IS_COVERED
-- Whether the claim of the job j that the item i names has reserved of each limit that applies to it.
(NOT HAS_LIMITS OR NOT EXISTS (
    SELECT 1 FROM (SELECT BUDGET_OF AS budget) AS own CROSS JOIN spend_limits AS l
    WHERE LIMITED_BY AND NOT EXISTS (
        SELECT 1 FROM spend_reservations AS r
        WHERE r.scope_id = ?1 AND r.repository_id = ?2 AND r.subject = l.subject AND r.resource = l.resource
          AND r.job_id = j.job_id AND r.claim_token = i.value ->> 'claim_token')))

-- part: LEFT_OVER
-- The limits: how much is left of each, and what an attempt reserves by default. Values of other types are planted.
SELECT json_group_array(json_array(
    CAST(l.subject AS TEXT), CAST(l.resource AS TEXT), CAST(l.most - l.spent - RESERVED AS INTEGER),
    CAST(l.reserve AS INTEGER)))
FROM spend_limits AS l WHERE l.scope_id = ?1 AND l.repository_id = ?2

-- name: limits
-- ?3: a subject, or NULL for all.
SELECT l.subject, l.resource, l.most, l.reserve, l.spent, RESERVED AS reserved FROM spend_limits AS l
WHERE l.scope_id = ?1 AND l.repository_id = ?2 AND (?3 IS NULL OR l.subject = ?3)
ORDER BY l.subject, l.resource LIMIT ?4

-- name: set
-- ?4: the limits of a subject (?3), by resource; ?5: whether earlier spending is reset.
INSERT INTO spend_limits (scope_id, repository_id, subject, resource, most, reserve)
SELECT ?1, ?2, ?3, key, value ->> 0, value ->> 1 FROM json_each(?4) WHERE true
ON CONFLICT DO UPDATE SET most = excluded.most, reserve = excluded.reserve, spent = iif(?5, 0, spent)

-- name: remove_others
-- All limits of a subject (?3) but these (?4).
DELETE FROM spend_limits
WHERE OF_MESH AND subject = ?3 AND resource NOT IN (SELECT key FROM json_each(?4))

-- part: CHARGED
-- The attempts in ?3, and the limits that each is charged to.
json_each(?3) AS g CROSS JOIN spend_limits AS l ON l.scope_id = ?1 AND l.repository_id = ?2
    AND l.subject IN ('agent:' || (g.value ->> 'agent'), 'account:' || (g.value ->> 'account'))

-- part: ITS_RESERVATION
-- The reservation of an attempt.
spend_reservations AS r
WHERE r.scope_id = ?1 AND r.repository_id = ?2 AND r.subject = l.subject AND r.resource = l.resource
  AND r.job_id = g.value ->> 'job_id' AND r.claim_token = g.value ->> 'claim_token'

-- part: AMOUNT
-- How much an attempt is charged of the limit l. Of tokens whose price is not known, the reservation stands for it.
CASE WHEN substr(l.resource, 1, 6) = 'money:'
        AND (g.value ->> 'unpriced' OR g.value -> 'amounts' ->> l.resource IS NULL)
    THEN max(coalesce(g.value -> 'amounts' ->> l.resource, 0), coalesce((SELECT r.amount FROM ITS_RESERVATION), 0))
    ELSE coalesce(g.value -> 'amounts' ->> l.resource, 0) END

-- name: settle
-- Charge attempts (?3) to the limits of their agents and accounts.
UPDATE spend_limits SET spent = spent + c.amount
FROM (SELECT l.subject, l.resource, sum(AMOUNT) AS amount FROM CHARGED GROUP BY l.subject, l.resource) AS c
WHERE OF_MESH AND spend_limits.subject = c.subject AND spend_limits.resource = c.resource

-- name: use_reservations
-- What was charged is not reserved any more.
UPDATE spend_reservations SET amount = max(0, spend_reservations.amount - c.charged)
FROM (
    SELECT l.subject, l.resource, g.value ->> 'job_id' AS job_id, g.value ->> 'claim_token' AS claim_token,
        AMOUNT AS charged
    FROM CHARGED) AS c
WHERE OF_MESH AND spend_reservations.subject = c.subject AND spend_reservations.resource = c.resource
  AND spend_reservations.job_id = c.job_id AND spend_reservations.claim_token = c.claim_token

-- name: record
-- What attempts have used (?3).
INSERT INTO token_spend (
    scope_id, repository_id, agent_id, window_ms, account, kind, model, currency, input_tokens, output_tokens, micros,
    unpriced, charged_ms)
SELECT ?1, ?2, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
    value ->> 8, value ->> 9, value ->> 10
FROM json_each(?3) WHERE true
ON CONFLICT DO UPDATE SET
    input_tokens = input_tokens + excluded.input_tokens, output_tokens = output_tokens + excluded.output_tokens,
    micros = micros + excluded.micros, unpriced = unpriced + excluded.unpriced,
    charged_ms = max(charged_ms, excluded.charged_ms)

-- part: IS_OVER
-- Whether the claim of a reservation has ended.
NOT EXISTS (
    SELECT 1 FROM jobs AS h
    WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND h.job_id = spend_reservations.job_id
      AND h.claim_token = spend_reservations.claim_token AND h.lease_until_ms IS NOT NULL)

-- name: is_any_over
SELECT EXISTS (SELECT 1 FROM spend_reservations WHERE OF_MESH AND IS_OVER)

-- name: forget
DELETE FROM spend_reservations WHERE OF_MESH AND IS_OVER

-- part: SUMS
sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens, sum(micros) AS micros,
sum(unpriced) AS unpriced

-- name: totals
-- The tokens from ?3 to ?4, of one agent (?5) or account (?6) or all: by agent, account, kind, model and day, at most ?7.
SELECT CAST(agent_id AS TEXT) AS agent_id, CAST(account AS TEXT) AS account, CAST(kind AS TEXT) AS kind,
    CAST(model AS TEXT) AS model, CAST(currency AS TEXT) AS currency, window_ms / 86400000 * 86400000 AS day_ms, SUMS
FROM token_spend
WHERE OF_MESH AND window_ms >= ?3 AND window_ms < ?4 AND (?5 IS NULL OR agent_id = ?5) AND (?6 IS NULL OR account = ?6)
GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 6 DESC, 1, 2, 3, 4, 5 LIMIT ?7

-- part: COUNTED
-- Every row twice: for the agent, and for the account.
(
    SELECT 'agent:' || agent_id AS subject, * FROM token_spend WHERE OF_MESH
    UNION ALL
    SELECT 'account:' || account, * FROM token_spend WHERE OF_MESH AND account <> ''
)

-- name: of_subjects
-- The tokens of a subject (?3) or all, since the start of its budget or from ?4 on, by currency.
SELECT CAST(e.subject AS TEXT) AS subject, CAST(e.currency AS TEXT) AS currency, SUMS
FROM COUNTED AS e LEFT JOIN budgets AS b ON b.scope_id = ?1 AND b.repository_id = ?2 AND b.subject = e.subject
WHERE (?3 IS NULL OR e.subject = ?3) AND e.charged_ms >= coalesce(?4, b.since_ms, 0) GROUP BY 1, 2

-- name: of_agent
-- The tokens of an agent (?3) from ?4 on, by model and currency; and since ?5.
SELECT CAST(model AS TEXT) AS model, CAST(currency AS TEXT) AS currency, window_ms >= ?5 AS is_recent, SUMS
FROM token_spend WHERE OF_MESH AND agent_id = ?3 AND window_ms >= ?4 GROUP BY 1, 2, 3 ORDER BY 1, 2 LIMIT ?6

-- name: of_windows
-- The tokens of bars: ?3 is an array of their starts and ends.
SELECT w.value ->> 0 AS start_ms, CAST(t.currency AS TEXT) AS currency, SUMS
FROM json_each(?3) AS w CROSS JOIN token_spend AS t INDEXED BY token_spend_of_window
    ON t.scope_id = ?1 AND t.repository_id = ?2 AND t.window_ms >= w.value ->> 0 AND t.window_ms < w.value ->> 1
GROUP BY 1, 2
