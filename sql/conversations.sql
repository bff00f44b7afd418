-- Conversations of agent frameworks. `?1` is the scope, `?2` the repository, `?3` the thread of a graph or the session.

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- part: OF_THREAD
scope_id = ?1 AND repository_id = ?2 AND thread_id = ?3

-- part: OF_NAMESPACE
scope_id = ?1 AND repository_id = ?2 AND thread_id = ?3 AND namespace = ?4

-- part: IS_EXPIRED
-- Whether the thread has expired: it is as if it were pruned.
EXISTS (
    SELECT 1 FROM conversations
    WHERE OF_MESH AND kind = 'graph' AND name = ?3 AND expires_ms <= NOW_MS)

-- part: LIVE_THREADS
SELECT name FROM conversations
WHERE OF_MESH AND kind = 'graph' AND (expires_ms IS NULL OR expires_ms > NOW_MS)

-- --- writing ---------------------------------------------------------------------------------------------

-- name: forget_checkpoints
DELETE FROM graph_checkpoints WHERE OF_THREAD AND IS_EXPIRED

-- name: forget_writes
DELETE FROM graph_writes WHERE OF_THREAD AND IS_EXPIRED

-- name: touch
-- ?4: after how many ms it expires, or NULL; ?5: its kind. It is postponed in steps: most writes change nothing here.
INSERT INTO conversations (scope_id, repository_id, kind, name, expires_ms)
VALUES (?1, ?2, ?5, ?3, NOW_MS + ?4)
ON CONFLICT DO UPDATE SET expires_ms = excluded.expires_ms
WHERE coalesce(abs(expires_ms - excluded.expires_ms) > ?4 / 64, expires_ms IS NOT excluded.expires_ms)

-- name: put_checkpoint
INSERT INTO graph_checkpoints (
    scope_id, repository_id, thread_id, namespace, checkpoint_id, parent_id, run_id, metadata, type, checkpoint)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
ON CONFLICT DO UPDATE SET
    parent_id = excluded.parent_id, run_id = excluded.run_id, metadata = excluded.metadata, type = excluded.type,
    checkpoint = excluded.checkpoint

-- name: put_write
-- The first value counts; of errors, interrupts and the like (below 0), the last.
INSERT INTO graph_writes (
    scope_id, repository_id, thread_id, namespace, checkpoint_id, task_id, position, task_path, channel, type, value)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
ON CONFLICT DO UPDATE SET
    task_path = excluded.task_path, channel = excluded.channel, type = excluded.type, value = excluded.value
WHERE position < 0

-- --- reading ---------------------------------------------------------------------------------------------

-- name: checkpoint
-- The one with this id (?5), or else the latest.
SELECT checkpoint_id, parent_id, metadata, type, checkpoint FROM graph_checkpoints
WHERE OF_NAMESPACE AND NOT IS_EXPIRED
  AND checkpoint_id = coalesce(?5, (SELECT max(checkpoint_id) FROM graph_checkpoints WHERE OF_NAMESPACE))

-- name: writes
-- In the order in which the graph applies them.
SELECT task_id, channel, type, value FROM graph_writes
WHERE OF_NAMESPACE AND checkpoint_id = ?5
ORDER BY task_path, task_id, position LIMIT ?6 OFFSET ?7

-- part: ON_PAGE
-- The live ones before ?5 and ?6: the id of a checkpoint, and that of its row. ?7: only the checkpoints with this id.
thread_id IN (LIVE_THREADS) AND (?5 IS NULL OR (checkpoint_id, id) < (?5, ?6)) AND (?7 IS NULL OR checkpoint_id = ?7)

-- part: ENTRY
id, thread_id, namespace, checkpoint_id, metadata

-- name: page_of_thread
-- The newest ones, up to ?8. ?4: of one namespace, or of all.
SELECT ENTRY FROM graph_checkpoints WHERE OF_THREAD AND (?4 IS NULL OR namespace = ?4) AND ON_PAGE
ORDER BY checkpoint_id DESC, id DESC LIMIT ?8

-- name: page
-- The same of all threads (?3 is NULL).
SELECT ENTRY FROM graph_checkpoints WHERE OF_MESH AND ?3 IS NULL AND (?4 IS NULL OR namespace = ?4) AND ON_PAGE
ORDER BY checkpoint_id DESC, id DESC LIMIT ?8

-- --- removing --------------------------------------------------------------------------------------------
-- At most ?4 checkpoints at once, with what was written since.

-- name: changed
SELECT changes() AS changed

-- name: expire
-- From now on nothing reads it; what prunes its rows may stop at any point.
UPDATE conversations SET expires_ms = 0 WHERE OF_MESH AND kind = ?4 AND name = ?3

-- name: remove_writes
DELETE FROM graph_writes WHERE id IN (SELECT id FROM graph_writes WHERE OF_THREAD AND IS_EXPIRED LIMIT ?4)

-- name: remove_checkpoints
DELETE FROM graph_checkpoints WHERE id IN (SELECT id FROM graph_checkpoints WHERE OF_THREAD AND IS_EXPIRED LIMIT ?4)

-- name: remove_conversation
DELETE FROM conversations
WHERE OF_MESH AND kind = 'graph' AND name = ?3 AND expires_ms <= NOW_MS
  AND NOT EXISTS (SELECT 1 FROM graph_checkpoints WHERE OF_THREAD)
  AND NOT EXISTS (SELECT 1 FROM graph_writes WHERE OF_THREAD)

-- part: OF_RUNS
SELECT id FROM graph_checkpoints
WHERE OF_MESH AND run_id IN (SELECT value FROM json_each(?3)) ORDER BY id LIMIT ?4

-- part: SUPERSEDED
-- The checkpoints of a thread before the latest of their namespace. One with deltas since a snapshot needs all of them.
SELECT c.id FROM graph_checkpoints AS c
WHERE c.scope_id = ?1 AND c.repository_id = ?2 AND c.thread_id = ?3
  AND EXISTS (
    SELECT 1 FROM graph_checkpoints AS l
    WHERE l.scope_id = ?1 AND l.repository_id = ?2 AND l.thread_id = ?3 AND l.namespace = c.namespace
      AND l.checkpoint_id > c.checkpoint_id
      AND l.checkpoint_id = (
        SELECT max(m.checkpoint_id) FROM graph_checkpoints AS m
        WHERE m.scope_id = ?1 AND m.repository_id = ?2 AND m.thread_id = ?3 AND m.namespace = c.namespace)
      AND NOT instr(l.metadata, '"counters_since_delta_snapshot": {"'))
ORDER BY c.id LIMIT ?4

-- part: WRITTEN_SINCE
-- The beginning of a query for what was written since some checkpoints.
SELECT w.id FROM graph_checkpoints AS k
CROSS JOIN graph_writes AS w
ON w.scope_id = ?1 AND w.repository_id = ?2 AND w.thread_id = k.thread_id AND w.namespace = k.namespace
  AND w.checkpoint_id = k.checkpoint_id
WHERE k.id IN

-- name: remove_writes_of_runs
DELETE FROM graph_writes WHERE id IN (WRITTEN_SINCE (OF_RUNS))

-- name: remove_checkpoints_of_runs
DELETE FROM graph_checkpoints WHERE id IN (OF_RUNS)

-- name: remove_superseded_writes
DELETE FROM graph_writes WHERE id IN (WRITTEN_SINCE (SUPERSEDED))

-- name: remove_superseded_checkpoints
DELETE FROM graph_checkpoints WHERE id IN (SUPERSEDED)

-- --- copying ---------------------------------------------------------------------------------------------

-- name: refuse_large_thread
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?4 < (SELECT count(*) FROM graph_checkpoints WHERE OF_THREAD)

-- name: copy_checkpoints
-- To the thread ?4.
INSERT INTO graph_checkpoints (
    scope_id, repository_id, thread_id, namespace, checkpoint_id, parent_id, run_id, metadata, type, checkpoint)
SELECT ?1, ?2, ?4, namespace, checkpoint_id, parent_id, run_id, metadata, type, checkpoint
FROM graph_checkpoints WHERE OF_THREAD AND NOT IS_EXPIRED ORDER BY id
ON CONFLICT DO NOTHING

-- name: copy_writes
INSERT INTO graph_writes (
    scope_id, repository_id, thread_id, namespace, checkpoint_id, task_id, position, task_path, channel, type, value)
SELECT ?1, ?2, ?4, namespace, checkpoint_id, task_id, position, task_path, channel, type, value
FROM graph_writes WHERE OF_THREAD AND NOT IS_EXPIRED ORDER BY id
ON CONFLICT DO NOTHING

-- --- sessions --------------------------------------------------------------------------------------------

-- part: OF_SESSION
scope_id = ?1 AND repository_id = ?2 AND session_id = ?3

-- part: SESSION_EXPIRED
EXISTS (
    SELECT 1 FROM conversations
    WHERE OF_MESH AND kind = 'session' AND name = ?3 AND expires_ms <= NOW_MS)

-- name: forget_items
DELETE FROM session_items WHERE OF_SESSION AND SESSION_EXPIRED

-- name: add_items
-- ?4: a JSON array of items, each as JSON.
INSERT INTO session_items (scope_id, repository_id, session_id, item)
SELECT ?1, ?2, ?3, value FROM json_each(?4) ORDER BY key

-- name: items
-- The newest first, before one (?4), up to ?5.
SELECT id, item FROM session_items
WHERE OF_SESSION AND NOT SESSION_EXPIRED AND (?4 IS NULL OR id < ?4) ORDER BY id DESC LIMIT ?5

-- name: remove_item
-- If it is still the last one.
DELETE FROM session_items
WHERE OF_SESSION AND id = ?4 AND item = ?5 AND id = (SELECT max(id) FROM session_items WHERE OF_SESSION)

-- name: remove_items
DELETE FROM session_items WHERE id IN (SELECT id FROM session_items WHERE OF_SESSION AND SESSION_EXPIRED LIMIT ?4)

-- name: remove_session
DELETE FROM conversations
WHERE OF_MESH AND kind = 'session' AND name = ?3 AND expires_ms <= NOW_MS
  AND NOT EXISTS (SELECT 1 FROM session_items WHERE OF_SESSION)
