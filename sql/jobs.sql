-- Jobs: scheduled by any node or command, claimed by rank, and changed by ops alone.
--
-- Every transition takes the scope as ?1, the repository as ?2, the op's id as ?3, its payload as ?4 and its
-- author as ?5. The payload has `at_ms`, and `jobs`, whose items name each one's `job_id`. `last_op` identifies
-- the rows that an op has changed.

-- from oplog: REKEYED

-- from oplog: ENTRY

-- from oplog: ITS_ENTRY

-- from oplog: REKEYED

-- from spend: BUDGET_OF

-- from spend: NEED

-- from spend: LIMITED_BY

-- from spend: RESERVED

-- from spend: IS_UNLIMITED

-- from spend: IS_COVERED

-- from spend: LEFT_OVER

-- part: ITEMS
json_each(?4, '$.jobs') AS i

-- part: THEIR_JOBS
-- The items, and the jobs they name.
ITEMS CROSS JOIN jobs AS j ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = i.value ->> 'job_id'

-- part: MOVED
-- The jobs among the items that the op has changed.
SELECT 1 FROM THEIR_JOBS WHERE j.last_op = ?3

-- part: AT_MS
(?4 ->> 'at_ms')

-- part: COLUMNS
id, job_id, ulid, kind, state, priority, waits, not_before_ms, max_attempts, max_interruptions, backoff_ms,
lease_ms, claimer, claim_token, lease_until_ms, attempts, failures, interruptions, created_ms, started_ms, ended_ms,
exit_code, reason, output_artifacts, retry_of, scheduled_by, seed, last_op, binding

-- part: RECORD
COLUMNS, manifest

-- part: STANDING
-- The same columns without the manifests, which may be large.
COLUMNS, '{}' AS manifest

-- part: IS_READABLE
-- Whether a job can be claimed by its columns: only a hostile row can't. Counters stay below 2^53, where additions
-- become inexact, and an id that is not plain may be no UTF-8.
(typeof(job_id) = 'text' AND length(CAST(job_id AS BLOB)) = 64 AND job_id NOT GLOB '*[^0-9a-f]*'
AND typeof(seed) = 'text' AND typeof(priority) = 'integer'
AND typeof(waits) = 'integer' AND waits BETWEEN 0 AND 9007199254740991
AND typeof(not_before_ms) = 'integer' AND not_before_ms BETWEEN 0 AND 9007199254740991
AND typeof(max_attempts) = 'integer' AND max_attempts BETWEEN 0 AND 9007199254740991
AND typeof(backoff_ms) = 'integer' AND backoff_ms BETWEEN 0 AND 9007199254740991
AND typeof(claim_token) = 'integer' AND claim_token BETWEEN 0 AND 9007199254740991
AND typeof(attempts) = 'integer' AND attempts BETWEEN 0 AND 9007199254740991
AND typeof(failures) = 'integer' AND failures BETWEEN 0 AND 9007199254740991
AND typeof(created_ms) = 'integer' AND created_ms BETWEEN 0 AND 9007199254740991)

-- part: PRIORITIES
(SELECT 3 AS priority UNION ALL SELECT 2 UNION ALL SELECT 1 UNION ALL SELECT 0) AS p

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- part: IS_TAKEN
-- Whether the claim of the job is on behalf of an agent.
EXISTS (
    SELECT 1 FROM job_takes AS t WHERE t.scope_id = ?1 AND t.repository_id = ?2
      AND t.job_id = jobs.job_id AND t.claim_token = jobs.claim_token)

-- --- scheduling ------------------------------------------------------------------------------------------

-- name: schedule
-- An existing job is unchanged; a ULID of another job is refused. Items have the number of dependencies in `waits`:
-- these are read by `link` alone, since they may be many.
WITH items AS MATERIALIZED (SELECT value FROM ITEMS)  -- `json_each` makes an item's text again at each use
INSERT INTO jobs (
    scope_id, repository_id, job_id, ulid, kind, priority, waits, not_before_ms, max_attempts, max_interruptions,
    backoff_ms, lease_ms, created_ms, retry_of, scheduled_by, seed, last_op, binding, manifest
)
SELECT ?1, ?2, i.value ->> 'job_id', i.value ->> 'ulid', i.value ->> 'kind', i.value ->> 'priority',
    coalesce(i.value ->> 'waits', 0), max(AT_MS, coalesce(i.value ->> 'run_at_ms', 0)),
    i.value ->> 'max_attempts', coalesce(i.value ->> 'max_interruptions', 5), i.value ->> 'backoff_ms',
    i.value ->> 'lease_ms', AT_MS,
    i.value ->> '$.manifest.retry_of', ?5, i.value ->> 'seed', ?3, i.value ->> 'binding',
    i.value -> 'manifest'
FROM items AS i WHERE true
ON CONFLICT (scope_id, repository_id, job_id) DO NOTHING

-- name: link
-- The dependencies of the new jobs.
INSERT INTO job_predecessors (scope_id, repository_id, job_id, predecessor, awaited)
SELECT ?1, ?2, j.job_id, a.value ->> 0, a.value ->> 1
FROM THEIR_JOBS CROSS JOIN json_each(i.value, '$.after') AS a
WHERE j.last_op = ?3
ON CONFLICT DO NOTHING  -- the same job may be there twice

-- part: LINKS
-- The dependencies of the new jobs that have a row.
THEIR_JOBS
CROSS JOIN job_predecessors AS d
    ON d.scope_id = ?1 AND d.repository_id = ?2 AND d.job_id = j.job_id
LEFT JOIN jobs AS p
    ON p.scope_id = ?1 AND p.repository_id = ?2 AND p.job_id = d.predecessor AND d.awaited <> 'op'
LEFT JOIN agent_oplog AS o
    ON o.scope_id = ?1 AND o.repository_id = ?2 AND o.op_id = d.predecessor AND d.awaited = 'op'

-- name: refuse_unknown_predecessor
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM LINKS WHERE j.last_op = ?3 AND d.awaited <> 'op' AND p.id IS NULL
)

-- name: refuse_failed_predecessor
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM LINKS WHERE j.last_op = ?3 AND (
        (d.awaited = 'success' AND p.state IN ('failed', 'aborted')) OR o.accepted = 0
    )
)

-- part: UNMET
-- The number of unmet dependencies of a job.
SELECT count(*) FROM job_predecessors AS d
WHERE d.scope_id = ?1 AND d.repository_id = ?2 AND d.job_id = j.job_id AND CASE d.awaited
    WHEN 'op' THEN NOT EXISTS (
        SELECT 1 FROM agent_oplog AS o WHERE o.scope_id = ?1 AND o.repository_id = ?2
          AND o.op_id = d.predecessor AND o.accepted = 1)
    ELSE NOT EXISTS (
        SELECT 1 FROM jobs AS p WHERE p.scope_id = ?1 AND p.repository_id = ?2 AND p.job_id = d.predecessor
          AND (p.state = 'succeeded' OR (p.ended_ms IS NOT NULL AND d.awaited = 'end')))
    END

-- part: HAS_MANY
-- Whether the job j has more than 256 dependencies.
(SELECT 1 FROM job_predecessors AS d
WHERE d.scope_id = ?1 AND d.repository_id = ?2 AND d.job_id = j.job_id LIMIT 1 OFFSET 256) IS NOT NULL

-- part: AWAITS_JOBS
-- Whether the job j still waits for other jobs. The search ends at the first unmet dependency. Dependencies are in the
-- order of their hashes, which has nothing to do with the order of their ends: so on average it is short.
EXISTS (
    SELECT 1 FROM job_predecessors AS d
    WHERE d.scope_id = ?1 AND d.repository_id = ?2 AND d.job_id = j.job_id AND d.awaited <> 'op' AND NOT EXISTS (
        SELECT 1 FROM jobs AS p WHERE p.scope_id = ?1 AND p.repository_id = ?2 AND p.job_id = d.predecessor
          AND (p.state = 'succeeded' OR (p.ended_ms IS NOT NULL AND d.awaited = 'end'))))

-- name: wait
-- The number of unmet dependencies of the new jobs.
UPDATE jobs AS j SET waits = (UNMET)
WHERE id IN (SELECT j.id FROM THEIR_JOBS WHERE j.last_op = ?3 AND j.waits > 0)

-- name: place
-- Where an op is in the log.
SELECT node_id, seq, kind, id FROM agent_oplog WHERE OF_MESH AND op_id = ?3 AND accepted = 1

-- name: schedule_of
-- Where the op is by which an author (?5) scheduled a job with a given seed (?6), among up to ?4 ops from a time (?3)
-- on, or the last ?4 ops of the author: a spooled op is bound long after its job's creation.
SELECT o.node_id, o.seq
FROM (SELECT id FROM agent_oplog WHERE OF_MESH AND hlc >= ?3 ORDER BY hlc LIMIT ?4) AS n
CROSS JOIN agent_oplog AS o ON o.id = n.id
WHERE o.node_id = ?5 AND o.kind = 'ScheduleJob' AND o.accepted = 1 AND instr(o.payload, ?6) > 0
UNION ALL
SELECT o.node_id, o.seq
FROM (SELECT id FROM agent_oplog WHERE OF_MESH AND node_id = ?5 ORDER BY seq DESC LIMIT ?4) AS n
CROSS JOIN agent_oplog AS o ON o.id = n.id
WHERE o.kind = 'ScheduleJob' AND o.accepted = 1 AND instr(o.payload, ?6) > 0
LIMIT 1

-- name: entry_at
SELECT ENTRY FROM agent_oplog WHERE id = ?3 AND OF_MESH

-- part: ROUTE_OPS
-- The owner's ops about routes.
agent_oplog AS r INDEXED BY agent_oplog_of_owner
WHERE r.scope_id = ?1 AND r.repository_id = ?2 AND r.kind = 'RouteKind'
  AND r.kind IN ('DesignateCoordinator', 'RouteKind', 'RekeyNode', 'Anchor') AND r.accepted = 1

-- name: ends
-- The entries of the ops that ended jobs (?3), as their rows name them, and of other ops (?4): each with the following
-- ones of its chain, up to one that is signed. Values of other types are planted.
WITH spans AS MATERIALIZED (
    SELECT o.node_id AS chain, o.seq AS first, (
        SELECT s.seq FROM agent_oplog AS s
        WHERE s.scope_id = ?1 AND s.repository_id = ?2 AND s.node_id = o.node_id
          AND s.seq BETWEEN o.seq AND o.seq + 255 AND s.signature IS NOT NULL
        ORDER BY s.seq LIMIT 1) AS last
    FROM agent_oplog AS o
    WHERE o.scope_id = ?1 AND o.repository_id = ?2 AND typeof(o.seq) = 'integer' AND o.op_id IN (
        SELECT j.last_op FROM json_each(?3) AS i
        CROSS JOIN jobs AS j ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = i.value
        UNION SELECT value FROM json_each(?4))
)
SELECT ENTRY, (REKEYED) AS mark, EXISTS (SELECT 1 FROM ROUTE_OPS) AS has_routes
FROM spans CROSS JOIN agent_oplog ON OF_MESH AND node_id = chain AND seq BETWEEN first AND last
WHERE typeof(node_id) = 'text' AND typeof(seq) = 'integer' AND typeof(payload) = 'text'

-- part: CLAIMS
-- Ops that claim jobs, or end them without a completion, after an entry (?3) and up to another (?4), whatever their
-- verdicts say, which are not signed. Values of other types are planted.
agent_oplog NOT INDEXED
WHERE id > ?3 AND id <= ?4 AND OF_MESH
  AND (kind IN ('ClaimWork', 'AbortJob') OR (kind = 'ExpireWork' AND instr(payload, '"failed"') > 0))
  AND typeof(payload) = 'text' AND typeof(result) IN ('text', 'null')

-- name: claims_between
SELECT id, kind, CAST(payload AS TEXT), result, accepted = 1 FROM CLAIMS ORDER BY id

-- name: completions_between
-- The completions in the same part of the log: only pairs of a job and its claim token, since the payload also has the
-- proofs.
SELECT id, (
    SELECT json_group_array(json_extract(payload, fullkey || '.job_id', fullkey || '.claim_token')) || ''
    FROM json_each(iif(json_valid(payload), payload, '{}'), '$.jobs'))
FROM agent_oplog NOT INDEXED
WHERE id > ?3 AND id <= ?4 AND OF_MESH AND kind = 'CompleteJob' AND typeof(payload) = 'text' ORDER BY id

-- --- claiming --------------------------------------------------------------------------------------------

-- part: MATCHES
-- Whether the pattern p.kind matches the kind of the job j.
(p.kind = j.kind OR (substr(p.kind, -1) = '*'
    AND substr(j.kind, 1, length(p.kind) - 1) = substr(p.kind, 1, length(p.kind) - 1)))

-- part: ROUTES
-- The routes in force, as the author of the claim has verified them in the log: SQL can't check a signature.
routes (kind, node) AS MATERIALIZED (SELECT value ->> 0, value ->> 1 FROM json_each(?7, '$.routes'))

-- part: KNOWS_ROUTES
-- Whether the author has seen every op about routes, valid or not.
NOT EXISTS (SELECT 1 FROM ROUTE_OPS AND r.op_id NOT IN (SELECT value FROM json_each(?7, '$.ops')))

-- part: ROUTED_TO
-- The node that the job j is routed to: the most specific pattern applies.
SELECT p.node FROM routes AS p
WHERE MATCHES ORDER BY substr(p.kind, -1) = '*', length(p.kind) DESC LIMIT 1

-- part: IS_UNCLAIMED
-- Whether the item can claim the job, if it is time: it was not claimed since its last token was read. The new token is above
-- that one, and not below the time of the claim: so the tokens of a job keep rising even if the database has lost
-- the last ones. If an item names no last token, the new one follows it.
j.state = 'pending' AND j.waits = 0 AND i.value ->> 'claim_token' > j.claim_token
AND j.claim_token = coalesce(i.value ->> 'last_token', (i.value ->> 'claim_token') - 1)

-- part: IS_NEXT
IS_UNCLAIMED AND j.not_before_ms <= max(NOW_MS, min(AT_MS, NOW_MS + 1000))

-- name: take
-- ?6: the duration of the lease, ?7: the routes, ?8: the agent. The fast path for unrestricted jobs: no route, limit or
-- pause concerns their kinds, no budget of tokens or money is charged, and the author's clock is right, so that the log has the end of the lease.
WITH next AS MATERIALIZED (
    SELECT j.id, i.value ->> 'claim_token' AS token FROM THEIR_JOBS
    WHERE abs(NOW_MS - AT_MS) <= 1000 AND IS_UNCLAIMED
      AND j.not_before_ms <= max(NOW_MS, AT_MS)  -- as in IS_NEXT: AT_MS is not above NOW_MS + 1000
      AND NOT EXISTS (
        SELECT 1 FROM job_drains AS d
        WHERE d.scope_id = ?1 AND d.repository_id = ?2 AND d.node_id = ?5)
      AND NOT EXISTS (
        SELECT 1 FROM job_kinds AS k WHERE k.scope_id = ?1 AND k.repository_id = ?2 AND k.kind = j.kind
          AND (k.is_paused OR k.max_running IS NOT NULL OR k.rate IS NOT NULL))
      AND KNOWS_ROUTES AND IS_UNLIMITED
)
UPDATE jobs SET
    state = 'claimed', claimer = ?5, claim_token = next.token, attempts = attempts + 1,
    lease_until_ms = NOW_MS + ?6, last_op = ?3
FROM next WHERE jobs.id = next.id

-- name: refuse_early
-- Jobs bound to the rhythm may be claimed from this time on.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOW_MS < ?1

-- name: refuse_late
-- And before this time; it must follow the transition.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOW_MS >= ?1

-- name: refuse_unless_all
-- It must follow the transition directly.
INSERT INTO refusals (reason) SELECT 'refused' WHERE changes() <> json_array_length(?4, '$.jobs')

-- name: reserve
-- Before the claim: reserve tokens and money for the jobs, in the order of the items, if all that they need is left.
WITH wanted AS MATERIALIZED (
    SELECT j.job_id, i.key AS place, i.value ->> 'claim_token' AS token, BUDGET_OF AS budget
    FROM THEIR_JOBS WHERE IS_NEXT
),
lefts AS MATERIALIZED (
    SELECT l.scope_id, l.repository_id, l.subject, l.resource, l.reserve, l.most - l.spent - RESERVED AS remaining
    FROM spend_limits AS l WHERE l.scope_id = ?1 AND l.repository_id = ?2
),
needs AS MATERIALIZED (
    SELECT own.job_id, own.place, own.token, l.subject, l.resource, l.remaining, NEED AS need
    FROM wanted AS own CROSS JOIN lefts AS l WHERE LIMITED_BY
),
fitting AS MATERIALIZED (
    SELECT *, sum(need) OVER (PARTITION BY subject, resource ORDER BY place) AS total FROM needs
    WHERE job_id NOT IN (SELECT job_id FROM needs WHERE need > remaining)
)
INSERT INTO spend_reservations (scope_id, repository_id, subject, resource, job_id, claim_token, amount)
SELECT ?1, ?2, subject, resource, job_id, token, need FROM fitting
WHERE job_id NOT IN (SELECT job_id FROM fitting WHERE total > remaining)
ON CONFLICT DO UPDATE SET claim_token = excluded.claim_token, amount = excluded.amount

-- name: claim
-- ?6: the duration of the lease, ?7: the routes, ?8: the agent. Of each kind as many as its limits admit, in the order of the items.
WITH ROUTES,
allowed AS MATERIALIZED (
    SELECT j.id, j.kind, i.key AS place, i.value ->> 'claim_token' AS token FROM THEIR_JOBS
    WHERE IS_NEXT AND KNOWS_ROUTES AND IS_COVERED AND ?5 IS coalesce((ROUTED_TO), ?5) AND NOT EXISTS (
        SELECT 1 FROM job_drains AS d
        WHERE d.scope_id = ?1 AND d.repository_id = ?2 AND d.node_id = ?5)
),
next AS MATERIALIZED (
    SELECT id, kind, token, row_number() OVER (PARTITION BY kind ORDER BY place) AS nth FROM allowed
),
kinds AS MATERIALIZED (
    SELECT k.kind, k.is_paused, coalesce(k.max_running - iif(k.max_running IS NULL, 0, (
            SELECT count(*) FROM jobs AS h INDEXED BY jobs_held
            WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND h.kind = k.kind
              AND h.lease_until_ms IS NOT NULL)), 1e9) AS places,
        coalesce(k.rate - iif(k.rate IS NULL, 0, (
            SELECT count(*) FROM job_claims AS c
            WHERE c.scope_id = ?1 AND c.repository_id = ?2 AND c.kind = k.kind
              AND c.claimed_ms > NOW_MS - k.rate_ms)), 1e9) AS chances
    FROM job_kinds AS k
    WHERE k.scope_id = ?1 AND k.repository_id = ?2 AND k.kind IN (SELECT kind FROM next)
)
UPDATE jobs SET
    state = 'claimed', claimer = ?5, claim_token = admitted.token, attempts = attempts + 1,
    lease_until_ms = NOW_MS + ?6, last_op = ?3
FROM (
    SELECT n.id, n.token FROM next AS n LEFT JOIN kinds AS k ON k.kind = n.kind
    WHERE k.kind IS NULL OR (NOT k.is_paused AND n.nth <= k.places AND n.nth <= k.chances)
) AS admitted
WHERE jobs.id = admitted.id

-- name: record_claims
-- The claims of jobs of kinds with a rate.
INSERT INTO job_claims (scope_id, repository_id, kind, claimed_ms, job_id, claim_token)
SELECT DISTINCT ?1, ?2, j.kind, NOW_MS, j.job_id, j.claim_token
FROM THEIR_JOBS
CROSS JOIN job_kinds AS k ON k.scope_id = ?1 AND k.repository_id = ?2 AND k.kind = j.kind
WHERE j.last_op = ?3 AND k.rate IS NOT NULL

-- name: forget_claims
DELETE FROM job_claims WHERE OF_MESH AND (kind, claimed_ms) IN (
    SELECT c.kind, c.claimed_ms FROM job_kinds AS k
    CROSS JOIN job_claims AS c ON c.scope_id = ?1 AND c.repository_id = ?2 AND c.kind = k.kind
        AND c.claimed_ms <= NOW_MS - k.rate_ms
    WHERE k.scope_id = ?1 AND k.repository_id = ?2 AND k.rate IS NOT NULL)

-- name: record_takes
-- The agent on whose behalf the author has claimed them.
INSERT INTO job_takes (scope_id, repository_id, job_id, claim_token, agent_id, grant_id, lease_ms)
SELECT DISTINCT ?1, ?2, j.job_id, j.claim_token, ?4 ->> 'agent', ?4 ->> 'grant', ?4 ->> 'lease_duration_ms'
FROM THEIR_JOBS WHERE j.last_op = ?3
ON CONFLICT DO UPDATE SET
    claim_token = excluded.claim_token, agent_id = excluded.agent_id, grant_id = excluded.grant_id,
    lease_ms = excluded.lease_ms, artifacts = excluded.artifacts, start_op = NULL

-- name: keep_start
-- ?3: the job, ?4: its claim token, ?5: the op that started the attempt, before the first renewal hides it.
UPDATE job_takes SET start_op = coalesce(start_op, ?5) WHERE OF_MESH AND job_id = ?3 AND claim_token = ?4

-- name: end_takes
-- ?3: pairs of a job and its claim token.
DELETE FROM job_takes WHERE OF_MESH AND (job_id, claim_token) IN (
    SELECT value ->> 0, value ->> 1 FROM json_each(?3))

-- name: refuse_unknown_routes
-- An op about routes has come since the author read them.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT (KNOWS_ROUTES)

-- name: refuse_routed_elsewhere
INSERT INTO refusals (reason) WITH ROUTES SELECT 'refused' WHERE NOT EXISTS (MOVED) AND EXISTS (
    SELECT 1 FROM THEIR_JOBS WHERE IS_NEXT AND ?5 IS NOT coalesce((ROUTED_TO), ?5))

-- name: refuse_over_budget
-- What is left of a budget of tokens or money is not enough for any of them.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (MOVED) AND EXISTS (
    SELECT 1 FROM THEIR_JOBS WHERE IS_NEXT AND NOT IS_COVERED)

-- name: refuse_held_back
-- Its kind is paused or at its limit, or this node is draining.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (MOVED) AND EXISTS (
    SELECT 1 FROM THEIR_JOBS WHERE IS_NEXT)

-- name: refuse_unless_moved
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (MOVED)

-- name: moved
SELECT json_group_array(DISTINCT j.job_id) AS moved FROM THEIR_JOBS WHERE j.last_op = ?3

-- name: leased
SELECT json_group_array(DISTINCT j.job_id) AS moved, max(j.lease_until_ms) AS lease_until_ms
FROM THEIR_JOBS WHERE j.last_op = ?3

-- part: IS_HELD
-- Whether the author holds the job under the token that the item names.
j.claim_token = i.value ->> 'claim_token' AND j.claimer = ?5 AND j.lease_until_ms IS NOT NULL

-- name: renew
-- ?6: the duration of the lease.
UPDATE jobs SET lease_until_ms = NOW_MS + ?6, last_op = ?3
WHERE id IN (SELECT j.id FROM THEIR_JOBS WHERE IS_HELD AND j.lease_until_ms >= NOW_MS)

-- name: refuse_stale_lease
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (MOVED) AND EXISTS (
    SELECT 1 FROM ITEMS WHERE NOT EXISTS (
        SELECT 1 FROM jobs AS j WHERE j.scope_id = ?1 AND j.repository_id = ?2
          AND j.job_id = i.value ->> 'job_id' AND j.claim_token = i.value ->> 'claim_token'
          AND j.claimer = ?5 AND (j.lease_until_ms IS NULL OR j.lease_until_ms >= NOW_MS)))

-- name: start
UPDATE jobs SET state = 'running', started_ms = AT_MS, last_op = ?3
WHERE id IN (
    SELECT j.id FROM THEIR_JOBS WHERE IS_HELD AND j.state = 'claimed' AND j.lease_until_ms >= NOW_MS)

-- --- ending ----------------------------------------------------------------------------------------------

-- name: complete
-- All of them or none. An expired lease does not matter until ExpireWork ends it.
WITH items AS MATERIALIZED (
    SELECT j.id, i.value ->> 'state' AS state, i.value ->> 'exit_code' AS exit_code,
        i.value ->> 'reason' AS reason, coalesce(i.value -> 'output_artifacts', '[]') AS outputs
    FROM THEIR_JOBS WHERE IS_HELD AND j.state = 'running' AND i.value ->> 'state' IN ('succeeded', 'failed')
)
UPDATE jobs SET
    (state, failures, exit_code, reason, output_artifacts) = (
        SELECT n.state, jobs.failures + (n.state = 'failed'), n.exit_code, n.reason, n.outputs
        FROM items AS n WHERE n.id = jobs.id),
    lease_until_ms = NULL, ended_ms = AT_MS, last_op = ?3
WHERE id IN (SELECT id FROM items)

-- name: refuse_stale_claim
-- The author does not hold some of them under that token. It must follow the transition directly.
INSERT INTO refusals (reason) SELECT 'refused'
WHERE changes() <> json_array_length(?4, '$.jobs') AND EXISTS (
    SELECT 1 FROM ITEMS WHERE NOT EXISTS (
        SELECT 1 FROM jobs AS j WHERE j.scope_id = ?1 AND j.repository_id = ?2
          AND j.job_id = i.value ->> 'job_id' AND j.claim_token = i.value ->> 'claim_token'
          AND (j.last_op = ?3 OR (j.claimer IS coalesce(?5, j.claimer) AND j.state <> 'pending'))))

-- name: refuse_unless_all_moved
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM THEIR_JOBS WHERE j.last_op <> ?3)

-- name: refuse_without_snapshot
INSERT INTO refusals (reason) SELECT 'refused'
WHERE EXISTS (SELECT 1 FROM job_kinds WHERE OF_MESH AND is_audited) AND EXISTS (
    SELECT 1 FROM THEIR_JOBS
    CROSS JOIN job_kinds AS k ON k.scope_id = ?1 AND k.repository_id = ?2 AND k.kind = j.kind AND k.is_audited
    WHERE i.value ->> 'state' = 'succeeded' AND NOT EXISTS (
        SELECT 1 FROM json_each(i.value, '$.output_artifacts') AS o
        WHERE o.value ->> 'type' = 'likewise.inference.snapshot'))

-- name: give_back
-- All of them or none. A failed one has another attempt left; otherwise it would be completed. One that was
-- interrupted may be interrupted once more; otherwise its lease ends it.
WITH items AS MATERIALIZED (
    SELECT j.id, coalesce(i.value ->> 'failed', 0) AS failed,
        coalesce(i.value ->> 'interrupted', 0) AS interrupted, i.value ->> 'reason' AS reason,
        max(coalesce(i.value ->> 'not_before_ms', 0), AT_MS) AS not_before_ms
    FROM THEIR_JOBS
    WHERE j.claim_token = i.value ->> 'claim_token' AND j.claimer IS coalesce(?5, j.claimer)
      AND j.lease_until_ms IS NOT NULL
      AND j.failures + coalesce(i.value ->> 'failed', 0) < j.max_attempts
      AND coalesce(i.value ->> 'interrupted', 0) <= max(j.max_interruptions - j.interruptions, 0)
)
UPDATE jobs SET
    (failures, interruptions, reason, not_before_ms) = (
        SELECT jobs.failures + n.failed, jobs.interruptions + n.interrupted, n.reason, n.not_before_ms
        FROM items AS n WHERE n.id = jobs.id),
    state = 'pending', claimer = NULL, lease_until_ms = NULL, started_ms = NULL, last_op = ?3
WHERE id IN (SELECT id FROM items)

-- name: take_phrases
-- Before the op ends them: the metered attempts at the jobs, which their worker may not be able to report any more. The
-- id is `attempt_ulid` of the job and its claim token. An attempt that has reported its end is left out.
WITH taken AS MATERIALIZED (
    SELECT j.job_id, j.kind, j.claim_token, j.lease_until_ms, j.started_ms, j.failures + j.interruptions + 1 AS attempt,
        iif(json_valid(j.manifest), j.manifest, '{}') AS core, coalesce((
            SELECT h.agent_id FROM mesh_heartbeats AS h
            WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND h.node_id = j.claimer), j.claimer) AS agent_id
    FROM THEIR_JOBS
    WHERE j.state = 'running' AND j.started_ms IS NOT NULL
      AND j.claim_token = coalesce(i.value ->> 'claim_token', j.claim_token)
      AND (?4 ->> 'interrupts' IS NULL OR j.lease_until_ms < NOW_MS)
)
INSERT INTO phrase_begins (
    scope_id, repository_id, job_id, phrase_id, claim_token, agent_id, account, role, attempt, began_ms, lease_until_ms)
SELECT ?1, ?2, t.job_id, (
        SELECT group_concat(substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', (t.claim_token >> value & 31) + 1, 1), '')
        FROM (SELECT value FROM json_each('[55,50,45,40,35,30,25,20,15,10,5,0]') ORDER BY key)
    ) || upper(substr(t.job_id, 1, 14)), t.claim_token, t.agent_id, coalesce(t.core ->> '$.budget.charge_to', ''),
    t.kind, t.attempt, t.started_ms, t.lease_until_ms
FROM taken AS t
WHERE (t.core ->> '$.score' IS NOT NULL OR t.core ->> '$.budget' IS NOT NULL OR EXISTS (
        SELECT 1 FROM budgets AS b
        WHERE b.scope_id = ?1 AND b.repository_id = ?2 AND b.subject = 'agent:' || t.agent_id))
  AND NOT EXISTS (
    SELECT 1 FROM phrase_begins AS p WHERE p.scope_id = ?1 AND p.repository_id = ?2 AND p.job_id = t.job_id
      AND p.claim_token = t.claim_token)
  AND NOT EXISTS (
    SELECT 1 FROM phrase_ends AS p INDEXED BY phrase_ends_of_job
    WHERE p.scope_id = ?1 AND p.repository_id = ?2 AND p.job_id = t.job_id AND p.began_ms >= t.started_ms)
ON CONFLICT DO NOTHING

-- part: ASKED
-- The jobs that the op has returned to the queue with a question.
THEIR_JOBS WHERE j.last_op = ?3 AND i.value ->> '$.question.id' IS NOT NULL

-- name: ask
-- A job with a question waits for the op that answers it.
INSERT INTO job_predecessors (scope_id, repository_id, job_id, predecessor, awaited)
SELECT ?1, ?2, j.job_id, i.value ->> '$.question.id', 'op' FROM ASKED
ON CONFLICT DO NOTHING

-- name: await_jobs
-- A job whose steps have scheduled others waits for their ends.
INSERT INTO job_predecessors (scope_id, repository_id, job_id, predecessor, awaited)
SELECT ?1, ?2, j.job_id, a.value ->> 0, a.value ->> 1
FROM THEIR_JOBS CROSS JOIN json_each(i.value, '$.after') AS a
WHERE j.last_op = ?3
ON CONFLICT DO NOTHING  -- it may have waited for one of them before

-- name: wait_again
UPDATE jobs AS j SET waits = (UNMET) WHERE id IN (SELECT j.id FROM THEIR_JOBS WHERE j.last_op = ?3)

-- name: record_questions
INSERT INTO job_questions (
    scope_id, repository_id, job_id, question_id, asked_by, asked_of, asked_ms, expires_ms, escalate_to, escalate_ms,
    question)
SELECT ?1, ?2, j.job_id, i.value ->> '$.question.id', coalesce(?4 ->> 'agent', ?5), i.value ->> '$.question.to', AT_MS,
    i.value ->> '$.question.expires_ms', i.value ->> '$.question.escalate_to',
    i.value ->> '$.question.escalate_ms', i.value -> 'question' FROM ASKED
ON CONFLICT DO UPDATE SET
    question_id = excluded.question_id, asked_by = excluded.asked_by, asked_of = excluded.asked_of,
    asked_ms = excluded.asked_ms, expires_ms = excluded.expires_ms, escalate_to = excluded.escalate_to,
    escalate_ms = excluded.escalate_ms, question = excluded.question, answered_by = NULL

-- name: expire
-- Jobs with expired leases: their attempts were interrupted. One interruption too many ends the job.
UPDATE jobs SET
    state = iif(interruptions >= max_interruptions, 'failed', 'pending'),
    ended_ms = iif(interruptions >= max_interruptions, AT_MS, NULL),
    claimer = iif(interruptions >= max_interruptions, claimer, NULL),
    started_ms = iif(interruptions >= max_interruptions, started_ms, NULL),
    reason = iif(interruptions >= max_interruptions, 'interrupted more often than max_interruptions ('
        || max_interruptions || ') allows: ', '') || 'the lease ran out',
    interruptions = interruptions + 1, lease_until_ms = NULL, not_before_ms = AT_MS, last_op = ?3
WHERE id IN (
    SELECT j.id FROM THEIR_JOBS
    WHERE j.claim_token = i.value ->> 'claim_token' AND j.lease_until_ms < NOW_MS)

-- name: abort
UPDATE jobs SET
    state = 'aborted', ended_ms = AT_MS, lease_until_ms = NULL, reason = ?4 ->> 'reason', last_op = ?3
WHERE id IN (SELECT j.id FROM THEIR_JOBS WHERE j.ended_ms IS NULL)

-- part: SUCCESSORS
CROSS JOIN job_predecessors AS d INDEXED BY job_successors
    ON d.scope_id = ?1 AND d.repository_id = ?2 AND d.predecessor = e.job_id
CROSS JOIN jobs AS j ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = d.job_id

-- name: fail_successors
-- Jobs that depend on the success of one that the op has ended otherwise, and the jobs that depend on them.
WITH RECURSIVE e (job_id) AS (
    SELECT j.job_id FROM THEIR_JOBS WHERE j.last_op = ?3 AND j.state IN ('failed', 'aborted')
    UNION
    SELECT j.job_id FROM e SUCCESSORS WHERE d.awaited = 'success' AND j.state = 'pending'
)
UPDATE jobs SET state = 'failed', ended_ms = AT_MS, reason = 'a job that it waited for did not succeed',
    last_op = ?3
WHERE id IN (SELECT j.id FROM e SUCCESSORS WHERE d.awaited = 'success' AND j.state = 'pending')

-- name: release
-- Jobs that depend on one that the op has ended have one dependency less. One that was claimed before keeps the op that
-- returned it to the queue: a row that was put back is known by it. The row of a job with many dependencies is left alone
-- until no other job is awaited: it is large, and to count them takes long.
WITH RECURSIVE e (job_id) AS (
    SELECT j.job_id FROM THEIR_JOBS WHERE j.last_op = ?3 AND j.ended_ms IS NOT NULL
    UNION
    SELECT j.job_id FROM e SUCCESSORS WHERE j.last_op = ?3 AND j.state = 'failed'
),
waiting (id) AS MATERIALIZED (SELECT DISTINCT j.id FROM e SUCCESSORS WHERE j.state = 'pending' AND j.waits > 0)
UPDATE jobs AS j SET waits = (UNMET), not_before_ms = max(not_before_ms, AT_MS), last_op = iif(attempts, last_op, ?3)
WHERE id IN (
    SELECT w.id FROM waiting AS w CROSS JOIN jobs AS j ON j.id = w.id WHERE NOT (HAS_MANY AND AWAITS_JOBS))

-- --- maintenance -----------------------------------------------------------------------------------------

-- part: IS_TIME
-- Not text or bytes, as in a hostile row: they come after all numbers.
BETWEEN -9007199254740991 AND 9007199254740991

-- name: quarantine
-- End the jobs ?3 that no node can claim or expire, so that they take no place of others. `job rebuild` restores
-- the row of a job that the log knows.
UPDATE jobs SET state = 'failed', ended_ms = NOW_MS, lease_until_ms = NULL,
    reason = 'unreadable: a column of its row holds a value that no node writes'
WHERE OF_MESH AND id IN (SELECT value FROM json_each(?3)) AND ended_ms IS NULL AND NOT IS_READABLE

-- name: quarantined
SELECT changes()

-- part: AWAITING_OPS
jobs AS j INDEXED BY jobs_awaiting_ops
WHERE j.scope_id = ?1 AND j.repository_id = ?2
  AND j.state = 'pending' AND j.waits > 0 AND instr(j.manifest, '{"op":') > 0

-- name: next_maintenance
-- When the next lease expires and the next cron is due, whether any job waits for ops, and whether there are rules.
SELECT (
        SELECT lease_until_ms FROM jobs INDEXED BY jobs_held
        WHERE OF_MESH AND lease_until_ms IS NOT NULL AND lease_until_ms IS_TIME
        ORDER BY lease_until_ms LIMIT 1) AS expiry_ms,
    (SELECT next_ms FROM job_crons INDEXED BY job_crons_due
        WHERE OF_MESH AND next_ms IS_TIME ORDER BY next_ms LIMIT 1) AS cron_ms,
    EXISTS (SELECT 1 FROM AWAITING_OPS) AS awaits_ops,
    EXISTS (SELECT 1 FROM job_rules WHERE OF_MESH) AS has_rules,
    (SELECT until_ms FROM job_waits INDEXED BY job_waits_until
        WHERE OF_MESH AND until_ms IS NOT NULL AND until_ms IS_TIME ORDER BY until_ms LIMIT 1) AS wake_ms,
    (EXISTS (SELECT 1 FROM job_waits WHERE OF_MESH) OR EXISTS (SELECT 1 FROM job_cleanups WHERE OF_MESH)) AS has_waits

-- name: awaiting_refused
-- Jobs that wait for an op which was refused, and so never comes: up to ?3 of them.
SELECT j.job_id FROM AWAITING_OPS AND EXISTS (
    SELECT 1 FROM job_predecessors AS d CROSS JOIN agent_oplog AS o
        ON o.scope_id = ?1 AND o.repository_id = ?2 AND o.op_id = d.predecessor AND o.accepted = 0
    WHERE d.scope_id = ?1 AND d.repository_id = ?2 AND d.job_id = j.job_id AND d.awaited = 'op'
) LIMIT ?3

-- --- queries ---------------------------------------------------------------------------------------------

-- part: IN_WORKFLOW
-- The name of a job in its workflow.
iif(instr(manifest, '"workflow":{') > 0 AND json_valid(manifest),
    substr(manifest ->> '$.inputs[0].workflow.job', 1, 200), NULL)

-- name: ancestors
-- A job and all that it waited for, the newest first, each with its last op.
WITH RECURSIVE up (job_id) AS (
    SELECT ?3
    UNION
    SELECT d.predecessor FROM up
    CROSS JOIN job_predecessors AS d
        ON d.scope_id = ?1 AND d.repository_id = ?2 AND d.job_id = up.job_id AND d.awaited <> 'op'
)
SELECT j.job_id, j.kind, j.state, j.last_op, (
    SELECT json_group_array(d.predecessor) FROM job_predecessors AS d
    WHERE d.scope_id = ?1 AND d.repository_id = ?2 AND d.job_id = j.job_id AND d.awaited <> 'op'
) AS predecessors
FROM up CROSS JOIN jobs AS j ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = up.job_id
ORDER BY j.job_id <> ?3, j.id DESC LIMIT ?4

-- name: find
SELECT RECORD FROM jobs WHERE OF_MESH AND job_id IN (SELECT value FROM json_each(?3))

-- name: vertices
-- Jobs as graphs show them.
SELECT job_id, id, kind, state, IN_WORKFLOW AS title FROM jobs
WHERE OF_MESH AND job_id IN (SELECT value FROM json_each(?3))

-- name: taken
-- A job, and the take that its claim token belongs to.
SELECT RECORD, (
    SELECT json_array(t.agent_id, t.grant_id, t.lease_ms, t.artifacts, t.start_op) FROM job_takes AS t
    WHERE t.scope_id = ?1 AND t.repository_id = ?2 AND t.job_id = jobs.job_id AND t.claim_token = jobs.claim_token
) AS take FROM jobs WHERE OF_MESH AND job_id = ?3

-- name: beginning_with
-- Jobs whose id begins with ?3; two are enough to see that it is ambiguous.
SELECT RECORD FROM jobs WHERE OF_MESH AND job_id >= ?3 AND job_id < ?3 || 'g' ORDER BY job_id LIMIT 2

-- name: named
SELECT RECORD FROM jobs WHERE OF_MESH AND ulid = ?3

-- name: ids_of_ulids
SELECT ulid, job_id FROM jobs WHERE OF_MESH AND ulid IN (SELECT value FROM json_each(?3))

-- part: BOUND
jobs AS w INDEXED BY jobs_bound
WHERE w.scope_id = ?1 AND w.repository_id = ?2 AND w.state = 'pending' AND w.binding IS NOT NULL

-- part: BINDINGS
-- What of the rhythm pending jobs wait for, each once: a hostile row may say anything.
WITH RECURSIVE b (binding) AS (
    SELECT min(w.binding) FROM BOUND
    UNION ALL
    SELECT (SELECT min(w.binding) FROM BOUND AND w.binding > b.binding) FROM b WHERE b.binding IS NOT NULL
    LIMIT 64
) SELECT binding FROM b

-- part: PLACES
-- How many jobs each node holds.
SELECT json_group_object(coalesce(CAST(claimer AS TEXT), ''), jobs) FROM (
    SELECT claimer, count(*) AS jobs FROM jobs INDEXED BY jobs_held
    WHERE OF_MESH AND lease_until_ms IS NOT NULL AND NOT IS_TAKEN GROUP BY claimer)

-- name: glance
-- How many jobs are pending, how many each node holds, and up to ?3 pending jobs that wait for nothing but maybe their
-- time: none if more are pending. There is a row even if there are none.
SELECT m.pending, m.places, j.id, j.job_id, j.kind, j.priority, j.not_before_ms, j.claim_token, j.seed
FROM (
    SELECT (SELECT coalesce(sum(jobs), 0) FROM job_counts WHERE OF_MESH AND state = 'pending') AS pending,
        (PLACES) AS places
) AS m
LEFT JOIN job_counts AS c
    ON c.scope_id = ?1 AND c.repository_id = ?2 AND c.state = 'pending' AND c.jobs > 0 AND m.pending <= ?3
LEFT JOIN jobs AS j INDEXED BY jobs_ready
    ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.kind = c.kind AND j.state = 'pending' AND j.waits = 0
    AND j.binding IS NULL
LIMIT ?3 + 1

-- name: claim_inputs
-- The whole input of claiming, in one query: the kinds with pending jobs, the draining nodes, the settings of
-- kinds, the number of jobs that each node holds, the last changes of routes and of accepted keys, the last entry of
-- the log, the claims since an entry (?3), up to another (?4), what of the rhythm jobs wait for, what is left of the
-- budgets of tokens and money, and whether pending jobs may have tags.
SELECT
    (SELECT json_group_array(CAST(kind AS TEXT)) FROM job_counts
        WHERE OF_MESH AND state = 'pending' AND jobs > 0) AS kinds,
    (SELECT json_group_array(CAST(node_id AS TEXT)) FROM job_drains WHERE OF_MESH) AS drains,
    (SELECT json_group_array(json_array(
            CAST(kind AS TEXT), CAST(is_paused AS INTEGER), CAST(max_running AS INTEGER), CAST(rate AS INTEGER),
            CAST(rate_ms AS INTEGER), CAST(lease_ms AS INTEGER), CAST(is_audited AS INTEGER)))
        FROM job_kinds WHERE OF_MESH) AS rules,
    (PLACES) AS places,
    (SELECT iif(count(*) = 0, NULL, count(*) || ' ' || sum(r.id & 4294967295) || ' ' || max(r.hlc))
        FROM ROUTE_OPS) AS routed,
    (REKEYED) AS rekeyed,
    (SELECT max(id) FROM agent_oplog) AS last_id,
    (SELECT json_group_array(json_array(id, kind, CAST(payload AS TEXT), CAST(result AS TEXT), accepted = 1))
        FROM CLAIMS) AS claims,
    (SELECT json_group_array(binding) FROM (BINDINGS) WHERE typeof(binding) = 'text') AS bindings,
    (LEFT_OVER) AS spend,
    EXISTS (
        SELECT 1 FROM jobs AS w INDEXED BY jobs_tagged
        WHERE w.scope_id = ?1 AND w.repository_id = ?2 AND w.state = 'pending'
          AND instr(w.manifest, '"tags":[') > 0) AS has_tagged

-- part: READY
-- ?3: kinds, ?4: now, ?5: how many. Of each kind and priority the longest waiting ones.
SELECT r.id FROM jobs AS r INDEXED BY jobs_ready
WHERE r.scope_id = ?1 AND r.repository_id = ?2 AND r.kind = k.value AND r.priority = p.priority
  AND r.state = 'pending' AND r.waits = 0 AND r.not_before_ms <= ?4

-- part: FOREMOST
(SELECT j.id FROM json_each(?3) AS k CROSS JOIN PRIORITIES
CROSS JOIN jobs AS j ON j.id IN (READY ORDER BY r.not_before_ms LIMIT ?5)
ORDER BY j.priority DESC, j.not_before_ms, j.id LIMIT ?5)

-- part: FOREMOST_BUT
-- The same without jobs charged to the accounts in ?6, and only of the policy roots in ?7, if there are any. Of jobs
-- that are bound to the rhythm, only those with a binding in ?8 that were ready by its time. Without those for which
-- not enough is left of budgets of tokens or money (?9: those of accounts, and of the agent that claims). Without those
-- that have a tag which is not in ?10, if that is given.
(SELECT j.id FROM json_each(?3) AS k CROSS JOIN PRIORITIES
CROSS JOIN jobs AS j ON j.id IN (
    READY AND (?6 = '[]' OR coalesce(iif(json_valid(r.manifest), r.manifest, '{}') ->> '$.budget.charge_to', '')
        NOT IN (SELECT value FROM json_each(?6)))
    AND (?7 IS NULL OR iif(json_valid(r.manifest), r.manifest, '{}') ->> '$.policy_root'
        IN (SELECT value FROM json_each(?7)))
    AND (r.binding IS NULL OR EXISTS (
        SELECT 1 FROM json_each(?8) AS o
        WHERE o.value ->> 0 = r.binding AND r.not_before_ms <= o.value ->> 1))
    AND (?9 IS NULL OR NOT EXISTS (
        SELECT 1 FROM (SELECT coalesce(iif(json_valid(r.manifest), r.manifest, '{}') -> '$.budget', '{}') AS budget) AS own
        CROSS JOIN (
            SELECT value ->> 0 AS subject, value ->> 1 AS resource, value ->> 2 AS remaining, value ->> 3 AS reserve
            FROM json_each(?9)) AS l
        WHERE (l.subject LIKE 'agent:%' OR l.subject = 'account:' || (own.budget ->> 'charge_to'))
          AND NEED > l.remaining))
    AND (?10 IS NULL OR instr(r.manifest, '"tags":[') = 0 OR NOT EXISTS (
        SELECT 1 FROM json_each(iif(json_valid(r.manifest), r.manifest, '{}'), '$.tags') AS t
        WHERE t.value NOT IN (SELECT value FROM json_each(?10))))
    ORDER BY r.not_before_ms LIMIT ?5)
ORDER BY j.priority DESC, j.not_before_ms, j.id LIMIT ?5)

-- part: IN_TURN
ORDER BY priority DESC, not_before_ms, id

-- part: CLAIMABLE
id, job_id, kind, priority, not_before_ms, claim_token, seed

-- name: ready
SELECT RECORD FROM jobs WHERE id IN FOREMOST IN_TURN

-- name: claimable
SELECT CLAIMABLE FROM jobs WHERE id IN FOREMOST IN_TURN

-- name: claimable_but
SELECT CLAIMABLE, binding FROM jobs WHERE id IN FOREMOST_BUT IN_TURN

-- name: still_claimable
-- In the order of the request, each with the place of its last op. Values of other types are planted.
SELECT chosen.*, op.node_id, op.seq, op.kind, op.id
FROM (
    SELECT RECORD, place
    FROM (SELECT key AS place, value AS row_id FROM json_each(?3)) CROSS JOIN jobs ON id = row_id
    WHERE +scope_id = ?1 AND +repository_id = ?2 AND state = 'pending' ORDER BY place LIMIT ?4
) AS chosen
LEFT JOIN agent_oplog AS op
    ON op.scope_id = ?1 AND op.repository_id = ?2 AND op.op_id = chosen.last_op AND op.accepted = 1
    AND typeof(op.node_id) = 'text' AND typeof(op.seq) = 'integer' AND typeof(op.kind) = 'text'
ORDER BY chosen.place

-- name: still_pending
SELECT id FROM jobs
WHERE id IN (SELECT value FROM json_each(?3)) AND +scope_id = ?1 AND +repository_id = ?2 AND state = 'pending'

-- name: claimable_with_op
-- One of them, with the entry of its last op.
SELECT j.*, ITS_ENTRY
FROM (
    SELECT RECORD FROM jobs WHERE id = ?3 AND scope_id = ?1 AND repository_id = ?2 AND state = 'pending'
) AS j
LEFT JOIN agent_oplog AS entry
    ON entry.scope_id = ?1 AND entry.repository_id = ?2 AND entry.op_id = j.last_op AND entry.accepted = 1
    AND typeof(entry.node_id) = 'text' AND typeof(entry.seq) = 'integer' AND typeof(entry.kind) = 'text'

-- name: next_due
-- When the next job of these kinds can be claimed, after a given time.
SELECT min((
    SELECT r.not_before_ms FROM jobs AS r INDEXED BY jobs_ready
    WHERE r.scope_id = ?1 AND r.repository_id = ?2 AND r.kind = k.value AND r.priority = p.priority
      AND r.state = 'pending' AND r.waits = 0 AND r.not_before_ms > ?4 AND r.not_before_ms IS_TIME
    ORDER BY r.not_before_ms LIMIT 1)) AS due_ms
FROM json_each(?3) AS k
CROSS JOIN PRIORITIES

-- name: standing
SELECT STANDING FROM jobs WHERE OF_MESH AND job_id IN (SELECT value FROM json_each(?3))

-- name: standing_after
-- Jobs in the order of scheduling, after a position (?3).
SELECT STANDING FROM jobs WHERE OF_MESH AND id > ?3 ORDER BY id LIMIT ?4

-- name: completions
-- The items of jobs (?3) in the ops (?4) that completed them, and with what is needed to read their proofs. Values
-- of other types are planted.
SELECT i.value ->> 'job_id' AS job_id, i.value AS item, CAST(node_id AS TEXT) AS chain, CAST(seq AS INTEGER) AS seq,
    coalesce(payload -> '$.worker', 'null') AS worker
FROM agent_oplog CROSS JOIN json_each(payload, '$.jobs') AS i
WHERE OF_MESH AND op_id IN (SELECT value FROM json_each(?4)) AND kind = 'CompleteJob' AND accepted = 1
  AND typeof(payload) = 'text' AND json_valid(payload)
  AND iif(i.type = 'object', i.value ->> 'job_id', NULL) IN (SELECT value FROM json_each(?3))

-- name: still_open
-- Of some jobs, the ones that have not ended.
SELECT job_id FROM jobs WHERE OF_MESH AND job_id IN (SELECT value FROM json_each(?3)) AND ended_ms IS NULL

-- name: held_by
-- What a node holds for itself, and not on behalf of an agent.
SELECT STANDING FROM jobs INDEXED BY jobs_held
WHERE OF_MESH AND lease_until_ms IS NOT NULL AND claimer = ?3 AND NOT IS_TAKEN

-- name: not_held
-- Of these pairs of id and token, the ones that the node does not hold any more.
SELECT i.value ->> 0 AS job_id FROM json_each(?3) AS i WHERE NOT EXISTS (
    SELECT 1 FROM jobs AS j WHERE j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = i.value ->> 0
      AND j.claim_token = i.value ->> 1 AND j.claimer = ?4 AND j.lease_until_ms IS NOT NULL)

-- name: overdue
-- Claimed, with an expired lease.
SELECT STANDING FROM jobs INDEXED BY jobs_held
WHERE OF_MESH AND lease_until_ms < ?3 ORDER BY lease_until_ms LIMIT ?4

-- name: counts
SELECT kind, state, jobs FROM job_counts WHERE OF_MESH AND jobs > 0 ORDER BY kind, state

-- name: oldest_pending
-- The time since which the longest waiting job of each kind could have been claimed.
SELECT k.kind, min((
    SELECT r.not_before_ms FROM jobs AS r INDEXED BY jobs_ready
    WHERE r.scope_id = ?1 AND r.repository_id = ?2 AND r.kind = k.kind AND r.priority = p.priority
      AND r.state = 'pending' AND r.waits = 0 AND r.not_before_ms IS_TIME
    ORDER BY r.not_before_ms LIMIT 1)) AS since_ms
FROM job_counts AS k
CROSS JOIN PRIORITIES
WHERE k.scope_id = ?1 AND k.repository_id = ?2 AND k.state = 'pending' AND k.jobs > 0
GROUP BY k.kind HAVING since_ms IS NOT NULL ORDER BY k.kind

-- part: HOLDING_AGENT
-- The agent on whose behalf a job is held.
(SELECT t.agent_id FROM job_takes AS t WHERE t.scope_id = ?1 AND t.repository_id = ?2 AND t.job_id = jobs.job_id
    AND t.claim_token = jobs.claim_token AND jobs.lease_until_ms IS NOT NULL)

-- part: WANTED
-- ?3: kind or pattern, ?4: claimer, ?5: before this one, ?6: how many, ?8: down to this one, ?9: the agent that
-- holds it, ?10 and ?11: the first and the last ULID of a run. The newest first.
(?3 IS NULL OR kind = ?3 OR (substr(?3, -1) = '*'
    AND substr(kind, 1, length(?3) - 1) = substr(?3, 1, length(?3) - 1)))
AND (?4 IS NULL OR claimer = ?4) AND id < ?5 AND id >= ?8 AND (?9 IS NULL OR HOLDING_AGENT = ?9)
AND (?10 IS NULL OR ulid BETWEEN ?10 AND ?11) ORDER BY id DESC LIMIT ?6

-- part: LISTED
jobs NOT INDEXED WHERE OF_MESH AND (?7 IS NULL OR state = ?7) AND WANTED

-- part: LISTED_OPEN
jobs INDEXED BY jobs_open WHERE OF_MESH AND ended_ms IS NULL AND state = ?7 AND WANTED

-- part: LISTED_FAILED
jobs INDEXED BY jobs_gone_wrong WHERE OF_MESH AND state IN ('failed', 'aborted') AND state = ?7 AND WANTED

-- part: LISTED_OF_RUN
jobs INDEXED BY jobs_by_ulid
WHERE OF_MESH AND ulid BETWEEN ?10 AND ?11 AND (?7 IS NULL OR state = ?7) AND WANTED

-- part: LISTED_OF_AGENT
jobs WHERE OF_MESH AND job_id IN (
    SELECT t.job_id FROM job_takes AS t WHERE t.scope_id = ?1 AND t.repository_id = ?2 AND t.agent_id = ?9
) AND (?7 IS NULL OR state = ?7) AND WANTED

-- part: TABLE_ROW
-- What tables of jobs show, without manifests.
job_id, id, kind, state, IN_WORKFLOW AS title, ulid, priority, waits, attempts, max_attempts, claimer,
HOLDING_AGENT AS agent, created_ms, not_before_ms, started_ms, ended_ms, lease_until_ms, exit_code,
substr(reason, 1, 500) AS reason, retry_of, (
    SELECT json_array(n.progress, substr(n.message, 1, 500)) FROM job_notes AS n
    WHERE n.scope_id = ?1 AND n.repository_id = ?2 AND n.job_id = jobs.job_id
) AS note

-- name: newest
SELECT max(id) FROM jobs

-- name: list
SELECT RECORD FROM LISTED

-- name: list_open
SELECT RECORD FROM LISTED_OPEN

-- name: list_failed
SELECT RECORD FROM LISTED_FAILED

-- name: list_of_run
SELECT RECORD FROM LISTED_OF_RUN

-- name: list_of_agent
SELECT RECORD FROM LISTED_OF_AGENT

-- name: rows
SELECT TABLE_ROW FROM LISTED

-- name: rows_open
SELECT TABLE_ROW FROM LISTED_OPEN

-- name: rows_failed
SELECT TABLE_ROW FROM LISTED_FAILED

-- name: rows_of_run
SELECT TABLE_ROW FROM LISTED_OF_RUN

-- name: rows_of_agent
SELECT TABLE_ROW FROM LISTED_OF_AGENT

-- name: count
SELECT count(*) FROM LISTED

-- name: count_open
SELECT count(*) FROM LISTED_OPEN

-- name: count_failed
SELECT count(*) FROM LISTED_FAILED

-- name: count_of_run
SELECT count(*) FROM LISTED_OF_RUN

-- name: count_of_agent
SELECT count(*) FROM LISTED_OF_AGENT

-- name: of_run
-- The jobs of a run of a workflow: their ULIDs are from ?3 to ?4.
SELECT RECORD FROM jobs INDEXED BY jobs_by_ulid WHERE OF_MESH AND ulid BETWEEN ?3 AND ?4 ORDER BY ulid

-- name: runs
-- The newest ?4 runs of workflows among the newest ?3 jobs of the database.
WITH newest AS MATERIALIZED (
    SELECT state, created_ms, ended_ms, manifest FROM jobs NOT INDEXED
    WHERE id > (SELECT max(id) FROM jobs) - ?3 AND OF_MESH
), labelled AS MATERIALIZED (
    SELECT state, created_ms, ended_ms, manifest -> '$.inputs[0].workflow' AS label FROM newest
    WHERE instr(manifest, '"workflow":{') > 0 AND json_valid(manifest)
)
SELECT label ->> 'run' AS run_id, label ->> 'name' AS name, count(*) AS jobs, sum(state = 'succeeded') AS succeeded,
    sum(state IN ('failed', 'aborted')) AS unsuccessful, min(created_ms) AS created_ms,
    iif(count(ended_ms) = count(*), max(ended_ms), NULL) AS ended_ms
FROM labelled WHERE typeof(label ->> 'run') = 'text' AND typeof(label ->> 'name') = 'text'
GROUP BY 1 ORDER BY 6 DESC, 1 DESC LIMIT ?4

-- name: predecessors
-- The dependencies of these jobs, met or not: the first ?4.
SELECT d.job_id, d.predecessor, d.awaited, coalesce(p.state, '') AS state, coalesce(p.kind, '') AS kind
FROM json_each(?3) AS i
CROSS JOIN job_predecessors AS d ON d.scope_id = ?1 AND d.repository_id = ?2 AND d.job_id = i.value
LEFT JOIN jobs AS p ON p.scope_id = ?1 AND p.repository_id = ?2 AND p.job_id = d.predecessor
ORDER BY d.job_id, d.predecessor LIMIT ?4

-- name: linked_open
-- Open jobs that wait for others, or for which others wait: running ones first, then the newest, at most ?3.
SELECT j.job_id FROM jobs AS j INDEXED BY jobs_open
WHERE j.scope_id = ?1 AND j.repository_id = ?2 AND j.ended_ms IS NULL AND (
    EXISTS (
        SELECT 1 FROM job_predecessors AS d
        WHERE d.scope_id = ?1 AND d.repository_id = ?2 AND d.job_id = j.job_id)
    OR EXISTS (
        SELECT 1 FROM job_predecessors AS d INDEXED BY job_successors
        WHERE d.scope_id = ?1 AND d.repository_id = ?2 AND d.predecessor = j.job_id))
ORDER BY j.state = 'pending', j.id DESC LIMIT ?3

-- name: successors
SELECT DISTINCT d.job_id FROM json_each(?3) AS i
CROSS JOIN job_predecessors AS d INDEXED BY job_successors
    ON d.scope_id = ?1 AND d.repository_id = ?2 AND d.predecessor = i.value
ORDER BY d.job_id LIMIT ?4

-- name: drain
INSERT INTO job_drains (scope_id, repository_id, node_id, since_ms) VALUES (?1, ?2, ?3, NOW_MS)
ON CONFLICT DO NOTHING

-- name: undrain
DELETE FROM job_drains WHERE OF_MESH AND node_id = ?3

-- name: is_current
-- Whether the node holds a job under a token; a guard for writes of its handler.
SELECT 1 FROM jobs
WHERE OF_MESH AND job_id = ?3 AND claim_token = ?4 AND claimer = ?5 AND lease_until_ms >= NOW_MS
