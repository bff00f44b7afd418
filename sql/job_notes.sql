-- The notes of running jobs. None of them changes the state of the job.

-- part: IS_CURRENT_CLAIM
-- ?3: the job, ?4: the token. Notes of an attempt that is over are ignored.
EXISTS (
    SELECT 1 FROM jobs AS j
    WHERE j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = ?3 AND j.claim_token = ?4
      AND j.lease_until_ms IS NOT NULL)

-- name: note
-- ?5: progress, ?6: its text, ?7: the checkpoint for another attempt, with ?8: the op that started this attempt, and
-- ?9: the signature. NULL: unchanged.
INSERT INTO job_notes (
    scope_id, repository_id, job_id, claim_token, progress, message, checkpoint, noted_ms, start_op, signature)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, NOW_MS, ?8, ?9 WHERE IS_CURRENT_CLAIM
ON CONFLICT DO UPDATE SET
    claim_token = excluded.claim_token, progress = coalesce(excluded.progress, progress),
    message = coalesce(excluded.message, message), checkpoint = coalesce(excluded.checkpoint, checkpoint),
    noted_ms = excluded.noted_ms, start_op = iif(excluded.checkpoint IS NULL, start_op, excluded.start_op),
    signature = iif(excluded.checkpoint IS NULL, signature, excluded.signature)

-- name: refuse_if_over
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT IS_CURRENT_CLAIM

-- name: noted
SELECT progress, message, checkpoint, noted_ms FROM job_notes
WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?3

-- name: checkpoint
SELECT checkpoint, start_op, signature FROM job_notes
WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?3 AND checkpoint IS NOT NULL

-- name: log
-- ?5: pieces, each a stream and a text.
INSERT INTO job_logs (scope_id, repository_id, job_id, n, claim_token, stream, text, logged_ms)
SELECT ?1, ?2, ?3, i.key + 1 + coalesce((
        SELECT min(max(n), 9007199254740991) FROM job_logs
        WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?3), 0),
    ?4, i.value ->> 0, i.value ->> 1, NOW_MS
FROM json_each(?5) AS i WHERE IS_CURRENT_CLAIM

-- name: logged
-- ?3: the job, ?4: after this piece, ?5: how many.
SELECT n, claim_token, stream, text, logged_ms FROM job_logs
WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?3 AND n > ?4 ORDER BY n LIMIT ?5

-- name: logged_last
-- The last ?4 pieces of the job ?3, newest first.
SELECT n, claim_token, stream, text, logged_ms FROM job_logs
WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?3 ORDER BY n DESC LIMIT ?4
