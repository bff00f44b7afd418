-- The durable steps of jobs. `?1` is the scope, `?2` the repository, `?3` the job.

-- part: OF_JOB
scope_id = ?1 AND repository_id = ?2 AND job_id = ?3

-- name: of_job
-- In the order of writing, after a row (?4), up to ?5.
SELECT seq, place, name, kind, state, value, claim_token, began_ms, ended_ms, link, start_op, signature
FROM job_steps WHERE OF_JOB AND seq > ?4 ORDER BY seq LIMIT ?5

-- name: is_any
SELECT EXISTS (SELECT 1 FROM job_steps WHERE OF_JOB)

-- name: discard
-- The rows after the last one that is believed (?4): others take their places.
DELETE FROM job_steps WHERE OF_JOB AND seq > ?4

-- name: refuse_unless_stored
-- A rollback of the database may have lost the last row (?4, with the link ?5) that a worker has stored.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM job_steps WHERE OF_JOB AND seq = ?4 AND link = ?5)

-- name: append
-- ?4: rows in the order of the columns from `seq` on.
INSERT INTO job_steps (
    scope_id, repository_id, job_id, seq, place, name, kind, state, value, claim_token, began_ms, ended_ms, link,
    start_op, signature)
SELECT ?1, ?2, ?3, i.value ->> 0, i.value ->> 1, i.value ->> 2, i.value ->> 3, i.value ->> 4, i.value ->> 5,
    i.value ->> 6, i.value ->> 7, i.value ->> 8, i.value ->> 9, i.value ->> 10, i.value ->> 11
FROM json_each(?4) AS i
