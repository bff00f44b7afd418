-- Idempotency keys: the key and the answer of every script, and pruning both.

-- name: remember_key
-- Fails if the key is known: the script ran before.
INSERT INTO script_results (scope_id, repository_id, script_key, writer, since_s) VALUES (?, ?, ?, ?, NOW_MS / 1000)

-- name: remember_keys
-- The same for all scripts of a batch: one statement instead of one each.
INSERT INTO script_results (scope_id, repository_id, script_key, writer, since_s)
SELECT ?1, ?2, value, ?3, NOW_MS / 1000 FROM json_each(?4)

-- name: remember_failure
-- The failed statement, so that the script fails the same way when it is sent again.
INSERT INTO script_results (scope_id, repository_id, script_key, writer, failed_statement, since_s)
VALUES (?, ?, ?, ?, ?, NOW_MS / 1000)

-- name: outcomes_of
SELECT script_key, failed_statement FROM script_results
WHERE scope_id = ?1 AND repository_id = ?2 AND script_key IN (SELECT value FROM json_each(?3))

-- name: answers_of
SELECT script_key, n, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11 FROM script_answers
WHERE scope_id = ?1 AND repository_id = ?2 AND script_key IN (SELECT value FROM json_each(?3))
ORDER BY script_key, n

-- name: forget_keys
-- Only keys that were answered and can't be in flight again.
DELETE FROM script_results
WHERE scope_id = ?1 AND repository_id = ?2 AND script_key IN (SELECT value FROM json_each(?3))

-- name: forget_answers
DELETE FROM script_answers
WHERE scope_id = ?1 AND repository_id = ?2 AND script_key IN (SELECT value FROM json_each(?3))

-- name: forget_old_answers
-- Of this writer, or of commands that have long ended, from more than ?4 seconds ago.
DELETE FROM script_answers
WHERE scope_id = ?1 AND repository_id = ?2 AND script_key IN (
    SELECT script_key FROM script_results
    WHERE scope_id = ?1 AND repository_id = ?2 AND (writer = ?3 OR writer LIKE 'command:%')
      AND since_s < NOW_MS / 1000 - ?4
)

-- name: forget_old_keys
DELETE FROM script_results
WHERE scope_id = ?1 AND repository_id = ?2 AND (writer = ?3 OR writer LIKE 'command:%')
  AND since_s < NOW_MS / 1000 - ?4
