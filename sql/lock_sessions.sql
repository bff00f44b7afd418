-- Sessions: the processes, and the heartbeats of agents, that locks last for. ?1 is the scope and ?2 the repository.
-- Every statement may run twice with the effect of once.

-- name: of_host
-- The sessions on a host (?3), at most ?4: of locks, and of the nodes that renew them (without a request).
SELECT request_id, host, pid, started, ttl_ms FROM lock_sessions
WHERE scope_id = ?1 AND repository_id = ?2 AND host = ?3 ORDER BY request_id LIMIT ?4

-- name: of_requests
SELECT request_id, host, pid, started, ttl_ms FROM lock_sessions
WHERE scope_id = ?1 AND repository_id = ?2 AND request_id <> '' AND request_id IN (SELECT value FROM json_each(?3))

-- name: refuse_if_too_many
-- A host (?3) has ?4 sessions.
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?4 <= (
    SELECT count(*) FROM lock_sessions WHERE scope_id = ?1 AND repository_id = ?2 AND host = ?3)

-- name: begin
INSERT INTO lock_sessions (scope_id, repository_id, request_id, host, pid, started, ttl_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO UPDATE SET ttl_ms = max(ttl_ms, excluded.ttl_ms)

-- name: forget
-- A node that has ended.
DELETE FROM lock_sessions
WHERE scope_id = ?1 AND repository_id = ?2 AND request_id = '' AND host = ?3 AND pid = ?4 AND started = ?5

-- name: forget_if_too_many
-- The nodes of other hosts than ?3, if there are more than ?4: which hosts are lost is not known, and
-- running nodes announce themselves again.
DELETE FROM lock_sessions
WHERE scope_id = ?1 AND repository_id = ?2 AND request_id = '' AND host <> ?3 AND ?4 < (
    SELECT count(*) FROM lock_sessions WHERE scope_id = ?1 AND repository_id = ?2 AND request_id = '')

-- name: end
-- Those of a lock (?3) whose processes on a host (?4) have ended (?5).
DELETE FROM lock_sessions
WHERE scope_id = ?1 AND repository_id = ?2 AND request_id = ?3 AND host = ?4
  AND pid || ' ' || started IN (SELECT value FROM json_each(?5))

-- part: ALL_ENDED
-- The request (?3) has no session any more.
NOT EXISTS (
    SELECT 1 FROM lock_sessions AS s WHERE s.scope_id = ?1 AND s.repository_id = ?2 AND s.request_id = ?3)

-- name: release_exclusive
UPDATE distributed_locks SET expires_at = NOW_ISO, request_id = ''
WHERE scope_id = ?1 AND repository_id = ?2 AND request_id = ?3 AND ALL_ENDED

-- name: release_shared
DELETE FROM lock_shares
WHERE scope_id = ?1 AND repository_id = ?2 AND request_id = ?3 AND ALL_ENDED

-- name: prune
-- The sessions of locks that are over.
DELETE FROM lock_sessions
WHERE scope_id = ?1 AND repository_id = ?2 AND request_id <> '' AND request_id NOT IN (
    SELECT h.request_id FROM lock_holds AS h
    WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND h.expires_at > NOW_ISO)
