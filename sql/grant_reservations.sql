-- The budgets of grants: what jobs may cost is reserved when they are scheduled, and settled when they have ended.
--
-- A row is what a job may cost of a grant, in thousandths of beats. It is removed when it is settled: `reserved_mbu` of
-- the grant then has what the job did cost. ?1 is the scope, ?2 the repository.

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- part: NEW_JOBS
-- The jobs that the op ?3 has scheduled, with their costs. ?4: the pairs of a grant and its budget, and the costs by job.
json_each(?4, '$[1]') AS c CROSS JOIN jobs AS j
    ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = c.key AND j.last_op = ?3

-- name: reserve
-- A job that was there is not counted again.
INSERT INTO grant_reservations (scope_id, repository_id, job_id, grant_id, reserved_mbu)
SELECT ?1, ?2, j.job_id, b.value ->> 0, c.atom FROM json_each(?4, '$[0]') AS b CROSS JOIN NEW_JOBS WHERE true
ON CONFLICT DO NOTHING

-- name: count
UPDATE grants SET reserved_mbu = reserved_mbu + (SELECT coalesce(sum(c.atom), 0) FROM NEW_JOBS)
WHERE OF_MESH AND grant_id IN (SELECT b.value ->> 0 FROM json_each(?4, '$[0]') AS b)

-- name: refuse_over_budget
-- Jobs that cost more than they might have may have used up a budget: what was there before is not refused.
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (SELECT 1 FROM NEW_JOBS) AND EXISTS (
    SELECT 1 FROM json_each(?4, '$[0]') AS b CROSS JOIN grants AS g
        ON g.scope_id = ?1 AND g.repository_id = ?2 AND g.grant_id = b.value ->> 0
    WHERE g.reserved_mbu > b.value ->> 1)

-- part: SPENT
-- What all attempts at the job of the reservation r did cost. Each is rounded up: sums of fractions would not be exact.
(SELECT coalesce(sum(CAST(p.bu * 1000 AS INTEGER) + (p.bu * 1000 > CAST(p.bu * 1000 AS INTEGER))), 0)
FROM phrase_ends AS p INDEXED BY phrase_ends_of_job
WHERE p.scope_id = ?1 AND p.repository_id = ?2 AND p.job_id = r.job_id)

-- part: IS_DUE
-- Whether the job of the reservation r has ended, and the cost of every attempt is known.
NOT EXISTS (
    SELECT 1 FROM jobs AS j
    WHERE j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = r.job_id AND j.ended_ms IS NULL)
AND NOT EXISTS (
    SELECT 1 FROM phrase_begins AS p
    WHERE p.scope_id = ?1 AND p.repository_id = ?2 AND p.job_id = r.job_id)

-- part: ENDED
-- The jobs ?3, and the ones that failed with them.
e (job_id) AS (
    SELECT value FROM json_each(?3)
    UNION
    SELECT j.job_id FROM e CROSS JOIN job_predecessors AS d INDEXED BY job_successors
        ON d.scope_id = ?1 AND d.repository_id = ?2 AND d.predecessor = e.job_id AND d.awaited = 'success'
    CROSS JOIN jobs AS j ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = d.job_id AND j.state = 'failed')

-- part: DUE
-- The reservations of the jobs ?3 that are due.
e CROSS JOIN grant_reservations AS r ON r.scope_id = ?1 AND r.repository_id = ?2 AND r.job_id = e.job_id
WHERE IS_DUE

-- part: ALL_DUE
grant_reservations AS r WHERE r.scope_id = ?1 AND r.repository_id = ?2 AND IS_DUE

-- part: UNSPENT
-- By grant. A job may have cost more than was reserved.
SELECT r.grant_id, sum(r.reserved_mbu - SPENT) AS mbu

-- part: RETURN_UNSPENT
UPDATE grants SET reserved_mbu = reserved_mbu - unspent.mbu

-- name: settle
WITH RECURSIVE ENDED RETURN_UNSPENT FROM (UNSPENT FROM DUE GROUP BY r.grant_id) AS unspent
WHERE OF_MESH AND grants.grant_id = unspent.grant_id

-- name: remove_settled
-- It must follow the settlement.
WITH RECURSIVE ENDED DELETE FROM grant_reservations WHERE OF_MESH AND (job_id, grant_id) IN (
    SELECT r.job_id, r.grant_id FROM DUE)

-- name: settle_all
-- What nodes of earlier versions have ended.
RETURN_UNSPENT FROM (UNSPENT FROM ALL_DUE GROUP BY r.grant_id) AS unspent
WHERE OF_MESH AND grants.grant_id = unspent.grant_id

-- name: remove_all_settled
DELETE FROM grant_reservations WHERE OF_MESH AND (job_id, grant_id) IN (SELECT r.job_id, r.grant_id FROM ALL_DUE)

-- name: is_any_due
SELECT EXISTS (SELECT 1 FROM ALL_DUE)

-- name: reserved
-- What jobs by grants (?3) did cost, or may cost, in thousandths of beats. A value of another type is planted.
SELECT grant_id, CAST(reserved_mbu AS INTEGER) AS reserved_mbu FROM grants
WHERE OF_MESH AND grant_id IN (SELECT value FROM json_each(?3))

-- name: end
-- The reservations of grants that are not in force any more.
DELETE FROM grant_reservations WHERE OF_MESH AND NOT EXISTS (
    SELECT 1 FROM grants AS g
    WHERE g.scope_id = ?1 AND g.repository_id = ?2 AND g.grant_id = grant_reservations.grant_id)
