-- The durable steps of jobs. `?1` is the scope, `?2` the repository, `?3` the job.

-- part: OF_JOB
scope_id = ?1 AND repository_id = ?2 AND job_id = ?3

-- part: ROW
seq, place, name, kind, state, value, claim_token, began_ms, ended_ms, link, start_op, signature

-- name: of_job
-- In the order of writing, after a row (?4), up to ?5.
SELECT ROW FROM job_steps WHERE OF_JOB AND seq > ?4 ORDER BY seq LIMIT ?5

-- name: between
-- After a row (?4) and up to another one (?6), up to ?5.
SELECT ROW FROM job_steps WHERE OF_JOB AND seq > ?4 AND seq <= ?6 ORDER BY seq LIMIT ?5

-- name: page
-- Of the ?5 steps that follow a place (?4): the last place, the row before their first one, and the one whose signature
-- covers them; no values are read for that.
WITH steps AS (
    SELECT place, min(seq) AS first, max(seq) AS last FROM job_steps
    WHERE OF_JOB AND place > ?4 AND seq > 0 AND typeof(place) = 'integer' AND typeof(seq) = 'integer'
    GROUP BY place ORDER BY place LIMIT ?5),
page AS (SELECT max(place) AS place, min(first) - 1 AS before, max(last) AS last FROM steps)
SELECT place, before, coalesce((
    SELECT seq FROM job_steps WHERE OF_JOB AND seq >= last AND signature IS NOT NULL ORDER BY seq LIMIT 1), last)
FROM page WHERE place IS NOT NULL

-- name: names
-- The names of the steps up to a place (?4), and how many have each.
SELECT name, count(DISTINCT place) FROM job_steps WHERE OF_JOB AND place <= ?4 AND typeof(name) = 'text' GROUP BY name

-- name: is_any
SELECT EXISTS (SELECT 1 FROM job_steps WHERE OF_JOB)

-- name: discard
-- The rows after the last one that is believed (?4): others take their places.
DELETE FROM job_steps WHERE OF_JOB AND seq > ?4

-- name: refuse_unless_stored
-- A rollback of the database may have lost the last row (?4, with the link ?5) that a worker has stored.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM job_steps WHERE OF_JOB AND seq = ?4 AND link = ?5)

-- part: COLUMNS
scope_id, repository_id, job_id, seq, place, name, kind, state, value, claim_token, began_ms, ended_ms, link, start_op,
signature

-- part: OF_ROW
i.value ->> 0, i.value ->> 1, i.value ->> 2, i.value ->> 3, i.value ->> 4, i.value ->> 5, i.value ->> 6,
i.value ->> 7, i.value ->> 8, i.value ->> 9, i.value ->> 10, i.value ->> 11

-- name: append
-- ?4: rows in the order of the columns from `seq` on.
INSERT INTO job_steps (COLUMNS) SELECT ?1, ?2, ?3, OF_ROW FROM json_each(?4) AS i

-- part: OF_APPENDED
i.value ->> 3, i.value ->> 4, i.value ->> 5, i.value ->> 6, i.value ->> 7, i.value ->> 8, i.value ->> 9,
i.value ->> 10, i.value ->> 11, i.value ->> 12, i.value ->> 13, i.value ->> 14, i.value ->> 15

-- part: IN_ITS_PLACE
-- What was sent again changes nothing, and is answered as before; a row that is not what was sent, is not answered.
ON CONFLICT (scope_id, repository_id, job_id, seq) DO UPDATE SET seq = excluded.seq WHERE link = excluded.link
RETURNING 'steps', job_id, claim_token

-- name: append_of_jobs
-- The rows of many jobs, each with the claimer of its job, and with the number and the link of the last row that its worker
-- has stored before; then the columns from `job_id` on. A row is stored if the worker still holds the job, and that last
-- row is there; the rows of other jobs are not concerned. ?1: the rows, ?2: the scope, ?3: the repository.
WITH given AS MATERIALIZED (  -- `json_each` makes a row's text again at each use
    SELECT i.value FROM json_each(?1) AS s CROSS JOIN json_each(s.value ->> 'rows') AS i
)
INSERT INTO job_steps (COLUMNS)
SELECT ?2, ?3, OF_APPENDED FROM given AS i
WHERE EXISTS (
    SELECT 1 FROM jobs
    WHERE scope_id = ?2 AND repository_id = ?3 AND job_id = i.value ->> 3
      AND claim_token = i.value ->> 10 AND claimer = i.value ->> 0 AND lease_until_ms >= NOW_MS)
  AND (i.value ->> 1 = 0 OR EXISTS (
    SELECT 1 FROM job_steps
    WHERE scope_id = ?2 AND repository_id = ?3 AND job_id = i.value ->> 3
      AND seq = i.value ->> 1 AND link = i.value ->> 2))
IN_ITS_PLACE

-- name: append_alone
-- The same of a write that shares its transaction with no other. ?1: the scope, ?2: the repository, ?7: the rows.
WITH given AS MATERIALIZED (SELECT value FROM json_each(?7))
INSERT INTO job_steps (COLUMNS)
SELECT ?1, ?2, OF_APPENDED FROM given AS i
WHERE EXISTS (
    SELECT 1 FROM jobs
    WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = i.value ->> 3
      AND claim_token = i.value ->> 10 AND claimer = i.value ->> 0 AND lease_until_ms >= NOW_MS)
  AND (i.value ->> 1 = 0 OR EXISTS (
    SELECT 1 FROM job_steps
    WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = i.value ->> 3
      AND seq = i.value ->> 1 AND link = i.value ->> 2))
  AND IS_CURRENT
IN_ITS_PLACE
