-- Locks, their waiters, and patterns. ?1 is the scope and ?2 the repository, except where many requests share a
-- statement. `HOLDS` is the table of exclusive or that of shared locks. Every statement may run twice with the
-- effect of once, since a request is identified by its id; but the second time it may answer nothing.
--
-- A lock is identified by its fencing token and its request id: after a rollback of the database, two locks are
-- never taken for one. A new token is above all earlier ones of its key, and not below `NOW_TOKEN`, the
-- database's time: so tokens keep rising even if the database has lost the last ones it granted.

-- from grants: GRANTED

-- part: NOW_TOKEN
(NOW_MS << 10)

-- part: AFTER_GENERATION
-- The token after `generation`. No node issues tokens of 2^53 and more: such a value was planted, and would become a float
-- that rises no more. It fails the statement, with "integer overflow".
iif(typeof(generation) = 'integer' AND generation < 9007199254740991, generation + 1,
    abs(-9223372036854775807 - 1 - 0 * length(generation)))

-- part: NEXT_TOKEN
-- For a key that has no row: its earlier tokens are not above the generation.
max(NOW_TOKEN, AFTER_GENERATION)

-- part: NEXT_TOKEN_OF_ROW
max(NOW_TOKEN, (SELECT AFTER_GENERATION FROM (
    SELECT max(fence_token, generation) AS generation FROM lock_generations WHERE scope_id = ?1 AND repository_id = ?2)))

-- --- fast: one exclusive key without contention -----------------------------------------------------
-- For many requests in one statement (?1; ?2 is the scope and ?3 the repository), and for one by itself.

-- name: take_fast_many
-- Keys without holders or waiters that were compared with the newest pattern. All other requests have to queue.
WITH items AS MATERIALIZED (SELECT value FROM json_each(?1))  -- `json_each` makes an item's text again at each use
INSERT INTO distributed_locks (
    scope_id, repository_id, lock_key, holder_node, holder_agent, fence_token, request_id, acquired_at, expires_at
)
SELECT ?2, ?3, i.value ->> 'lock_key', i.value ->> 'holder_node', i.value ->> 'holder_agent', NEXT_TOKEN, i.value ->> 'key',
    NOW_ISO, ISO_IN(i.value ->> 'ttl')
FROM items AS i CROSS JOIN lock_generations
WHERE scope_id = ?2 AND repository_id = ?3 AND newest_pattern <= i.value ->> 'compared_up_to'
  AND (SELECT GRANTED FROM (
    SELECT ?2 AS scope, ?3 AS repository, i.value ->> 'holder_agent' AS agent, i.value ->> 'holder_node' AS node,
        i.value ->> 'grant' AS by_grant))
ON CONFLICT DO NOTHING
RETURNING lock_key, fence_token, expires_at

-- part: CLOCK_TOKEN
-- NOW_TOKEN where `database_clock` is joined, which costs a server less than several sub-selects.
((RAW_MS + coalesce(correction_ms, 0)) << 10)

-- part: CLOCK_TIME
-- The arguments of `strftime` for NOW_ISO there.
'%Y-%m-%dT%H:%M:%fZ', 'now', coalesce(modifier, '+0 seconds')

-- name: take_fast
INSERT INTO distributed_locks (
    scope_id, repository_id, lock_key, holder_node, holder_agent, fence_token, request_id, acquired_at, expires_at
)
SELECT ?1, ?2, ?7, ?8, ?9, max(CLOCK_TOKEN, AFTER_GENERATION), ?10, strftime(CLOCK_TIME), strftime(CLOCK_TIME, ?11)
FROM lock_generations LEFT JOIN database_clock
WHERE scope_id = ?1 AND repository_id = ?2 AND newest_pattern <= ?13 AND IS_CURRENT
  AND (SELECT GRANTED FROM (
    SELECT ?1 AS scope, ?2 AS repository, ?9 AS agent, ?8 AS node, ?12 AS by_grant))
ON CONFLICT DO NOTHING
RETURNING lock_key, fence_token, expires_at

-- name: release_fast_many
-- Only if the key has no waiters.
DELETE FROM distributed_locks
WHERE scope_id = ?2 AND repository_id = ?3 AND (lock_key, fence_token, request_id) IN (
    SELECT value ->> 'lock_key', value ->> 'fence_token', value ->> 'request_id' FROM json_each(?1)
) AND expires_at > NOW_ISO AND NOT is_contended
RETURNING lock_key

-- name: release_fast
DELETE FROM distributed_locks
WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key = ?7 AND fence_token = ?8 AND request_id = ?9
  AND expires_at > NOW_ISO AND NOT is_contended AND IS_CURRENT
RETURNING lock_key

-- --- queued: several keys, shared locks, patterns, waiting -----------------------------------------
-- A request joins the queue first. ?3 is the request, ?4 its keys.

-- name: refuse_unless_patterns_known
-- All patterns up to ?3 were compared with the keys; and the patterns among the keys, ?4, with all keys in use.
INSERT INTO refusals (reason) SELECT 'refused'
WHERE EXISTS (
    SELECT 1 FROM lock_generations WHERE scope_id = ?1 AND repository_id = ?2 AND newest_pattern > ?3)
   OR EXISTS (
    SELECT 1 FROM json_each(?4) AS k WHERE NOT EXISTS (
        SELECT 1 FROM lock_patterns AS p
        WHERE p.scope_id = ?1 AND p.repository_id = ?2 AND p.lock_key = k.value AND p.is_compared))

-- name: record_overlaps
INSERT INTO lock_overlaps (scope_id, repository_id, lock_key, other_key)
SELECT ?1, ?2, value ->> 0, value ->> 1 FROM json_each(?3)
UNION ALL SELECT ?1, ?2, value ->> 1, value ->> 0 FROM json_each(?3) WHERE true
ON CONFLICT DO NOTHING

-- name: raise_generation
-- The first one also allows the fast way.
INSERT INTO lock_generations (scope_id, repository_id, generation) VALUES (?1, ?2, NOW_TOKEN)
ON CONFLICT DO UPDATE SET generation = NEXT_TOKEN

-- name: raise_above
-- Above the tokens of these keys (?3) and of overlapping ones, so that it can be their next token.
UPDATE lock_generations SET generation = max(NOW_TOKEN, (SELECT AFTER_GENERATION FROM (
    SELECT max(lock_generations.generation, coalesce(max(fence_token), 0)) AS generation FROM distributed_locks
    WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key IN (
        SELECT value FROM json_each(?3)
        UNION ALL SELECT other_key FROM lock_overlaps
        WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key IN (SELECT value FROM json_each(?3))))))
WHERE scope_id = ?1 AND repository_id = ?2

-- name: mark_contended
INSERT INTO distributed_locks (
    scope_id, repository_id, lock_key, holder_node, holder_agent, fence_token, request_id, acquired_at, expires_at,
    is_contended
)
SELECT ?1, ?2, k.value, '', '', g.generation, '', NOW_ISO, NOW_ISO, 1
FROM json_each(?3) AS k JOIN lock_generations AS g ON g.scope_id = ?1 AND g.repository_id = ?2
WHERE true ON CONFLICT DO UPDATE SET is_contended = 1 WHERE NOT is_contended

-- name: clear_contended
-- Keys without waiters and shared locks: they can be taken the fast way again.
UPDATE distributed_locks SET is_contended = 0
WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key IN (SELECT value FROM json_each(?3)) AND is_contended
  AND NOT EXISTS (
    SELECT 1 FROM lock_waiters AS w
    WHERE w.scope_id = ?1 AND w.repository_id = ?2 AND w.lock_key = distributed_locks.lock_key)
  AND NOT EXISTS (
    SELECT 1 FROM lock_shares AS s
    WHERE s.scope_id = ?1 AND s.repository_id = ?2 AND s.lock_key = distributed_locks.lock_key)

-- name: delete_free
-- The rows of keys without holders and waiters.
DELETE FROM distributed_locks
WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key IN (SELECT value FROM json_each(?3))
  AND expires_at <= NOW_ISO AND NOT is_contended

-- name: join_queue
-- With the ticket that the request has (?8), or behind all others. Not if it was granted meanwhile and is held.
INSERT INTO lock_waiters (
    scope_id, repository_id, lock_key, ticket, request_id, is_shared, holder_node, holder_agent, waits_since, alive_until
)
SELECT ?1, ?2, k.value, coalesce(?8, NOW_MS), ?3, ?5, ?6, ?7, NOW_ISO, ISO_IN(?9)
FROM json_each(?4) AS k
WHERE NOT EXISTS (
    SELECT 1 FROM HOLDS AS h
    WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND h.lock_key = ?4 ->> 0 AND h.request_id = ?3
      AND h.expires_at > NOW_ISO)
ON CONFLICT DO UPDATE SET alive_until = excluded.alive_until

-- name: join_queue_behind
-- For one exclusive key that is held and contended: the request has to wait.
INSERT INTO lock_waiters (
    scope_id, repository_id, lock_key, ticket, request_id, is_shared, holder_node, holder_agent, waits_since, alive_until
)
SELECT ?1, ?2, ?4, NOW_MS, ?3, 0, ?5, ?6, NOW_ISO, ISO_IN(?7)
WHERE ?8 >= (SELECT newest_pattern FROM lock_generations WHERE scope_id = ?1 AND repository_id = ?2)
  AND EXISTS (
    SELECT 1 FROM distributed_locks AS h
    WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND h.lock_key = ?4 AND h.is_contended
      AND h.expires_at > NOW_ISO AND h.request_id <> ?3)
ON CONFLICT DO UPDATE SET alive_until = excluded.alive_until
RETURNING ticket

-- name: take
-- All keys or none: what blocks one of them blocks the request.
UPDATE distributed_locks SET
    holder_node = w.holder_node, holder_agent = w.holder_agent, fence_token = g.generation, request_id = ?3,
    acquired_at = NOW_ISO, expires_at = ISO_IN(?4)
FROM lock_waiters AS w JOIN lock_generations AS g ON g.scope_id = ?1 AND g.repository_id = ?2
WHERE distributed_locks.scope_id = ?1 AND distributed_locks.repository_id = ?2
  AND distributed_locks.lock_key = w.lock_key
  AND w.scope_id = ?1 AND w.repository_id = ?2 AND w.request_id = ?3 AND NOT EXISTS (
    SELECT 1 FROM lock_blockers AS b
    WHERE b.scope_id = ?1 AND b.repository_id = ?2 AND b.request_id = ?3 AND b.blocks_until > NOW_ISO)

-- name: take_share
INSERT OR REPLACE INTO lock_shares (
    scope_id, repository_id, lock_key, holder_node, holder_agent, fence_token, request_id, acquired_at, expires_at
)
SELECT ?1, ?2, w.lock_key, w.holder_node, w.holder_agent, g.generation, ?3, NOW_ISO, ISO_IN(?4)
FROM lock_waiters AS w JOIN lock_generations AS g ON g.scope_id = ?1 AND g.repository_id = ?2
WHERE w.scope_id = ?1 AND w.repository_id = ?2 AND w.request_id = ?3 AND NOT EXISTS (
    SELECT 1 FROM lock_blockers AS b
    WHERE b.scope_id = ?1 AND b.repository_id = ?2 AND b.request_id = ?3 AND b.blocks_until > NOW_ISO)

-- name: leave_queue_if_granted
DELETE FROM lock_waiters
WHERE scope_id = ?1 AND repository_id = ?2 AND request_id = ?3 AND EXISTS (
    SELECT 1 FROM HOLDS AS h
    WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND h.lock_key = ?4 ->> 0 AND h.request_id = ?3
      AND h.expires_at > NOW_ISO)

-- name: request_result
-- The lock of a request, or its ticket, or neither.
SELECT h.fence_token, h.expires_at, w.ticket, NOW_ISO FROM (SELECT 1)
LEFT JOIN HOLDS AS h
    ON h.scope_id = ?1 AND h.repository_id = ?2 AND h.lock_key = ?4 ->> 0 AND h.request_id = ?3
    AND h.expires_at > NOW_ISO
LEFT JOIN lock_waiters AS w
    ON w.scope_id = ?1 AND w.repository_id = ?2 AND w.request_id = ?3 AND w.lock_key = ?4 ->> 0

-- name: leave_queue_if_next
-- A request for one exclusive key (?4), compared with all patterns up to ?5: if the key is free and it is its turn.
DELETE FROM lock_waiters
WHERE scope_id = ?1 AND repository_id = ?2 AND request_id = ?3 AND lock_key = ?4
  AND ?5 >= (SELECT newest_pattern FROM lock_generations WHERE scope_id = ?1 AND repository_id = ?2)
  AND NOT EXISTS (
    SELECT 1 FROM distributed_locks AS h
    WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND h.lock_key = ?4 AND h.expires_at > NOW_ISO)
  AND NOT EXISTS (
    SELECT 1 FROM lock_shares AS s
    WHERE s.scope_id = ?1 AND s.repository_id = ?2 AND s.lock_key = ?4 AND s.expires_at > NOW_ISO)
  AND NOT EXISTS (
    SELECT 1 FROM lock_waiters AS e
    WHERE e.scope_id = ?1 AND e.repository_id = ?2 AND e.lock_key = ?4 AND e.alive_until > NOW_ISO
      AND (e.ticket, e.request_id) < (lock_waiters.ticket, lock_waiters.request_id))

-- name: hand_off
-- From the holder with this token (?8) and request (?11) to the first waiter of this key, if that is this request
-- and it was compared with all patterns up to ?9. No other request can come in between.
UPDATE distributed_locks SET
    holder_node = ?5, holder_agent = ?6, request_id = ?3, fence_token = NEXT_TOKEN_OF_ROW,
    acquired_at = NOW_ISO, expires_at = ISO_IN(?7)
WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key = ?4 AND fence_token = ?8
  AND request_id = ?11 AND expires_at > NOW_ISO
  AND ?9 >= (SELECT newest_pattern FROM lock_generations WHERE scope_id = ?1 AND repository_id = ?2)
  AND ?3 = (
    SELECT e.request_id FROM lock_waiters AS e
    WHERE e.scope_id = ?1 AND e.repository_id = ?2 AND e.lock_key = ?4 AND e.alive_until > NOW_ISO
    ORDER BY e.ticket, e.request_id LIMIT 1)
  AND (SELECT GRANTED FROM (
    SELECT ?1 AS scope, ?2 AS repository, ?6 AS agent, ?5 AS node, ?10 AS by_grant))
RETURNING fence_token, expires_at, NULL, NOW_ISO

-- name: leave_queue_if_handed_off
DELETE FROM lock_waiters
WHERE scope_id = ?1 AND repository_id = ?2 AND request_id = ?3 AND lock_key = ?4 AND EXISTS (
    SELECT 1 FROM distributed_locks AS h
    WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND h.lock_key = ?4 AND h.request_id = ?3)

-- name: take_if_next
-- Only if the statement before has removed it from the queue.
UPDATE distributed_locks SET
    holder_node = ?5, holder_agent = ?6, request_id = ?3, fence_token = NEXT_TOKEN_OF_ROW,
    acquired_at = NOW_ISO, expires_at = ISO_IN(?7)
WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key = ?4 AND changes() > 0
RETURNING fence_token, expires_at, NULL, NOW_ISO

-- name: refuse_unless_granted
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM HOLDS AS h
    WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND h.lock_key = ?4 ->> 0 AND h.request_id = ?3)

-- name: keep_waiters_alive
-- Extend the requests, ?3, and return those still in the queue.
UPDATE lock_waiters SET alive_until = ISO_IN(?4)
WHERE scope_id = ?1 AND repository_id = ?2 AND request_id IN (SELECT value FROM json_each(?3))
RETURNING request_id

-- name: leave_queue
DELETE FROM lock_waiters WHERE scope_id = ?1 AND repository_id = ?2 AND request_id = ?3

-- name: withdraw
-- Whether it was granted or not.
UPDATE distributed_locks SET expires_at = NOW_ISO, request_id = ''
WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key IN (SELECT value FROM json_each(?4)) AND request_id = ?3

-- name: withdraw_share
DELETE FROM lock_shares
WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key IN (SELECT value FROM json_each(?4)) AND request_id = ?3

-- name: blocked_requests
-- When the leases that block each of the requests, ?3, expire.
SELECT request_id, max(blocks_until) AS blocks_until FROM lock_blockers
WHERE scope_id = ?1 AND repository_id = ?2 AND request_id IN (SELECT value FROM json_each(?3))
GROUP BY request_id

-- name: release
UPDATE distributed_locks SET expires_at = NOW_ISO, request_id = ''
WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key IN (SELECT value FROM json_each(?3)) AND fence_token = ?4
  AND request_id = ?5 AND expires_at > NOW_ISO
RETURNING lock_key

-- name: release_share
DELETE FROM lock_shares
WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key IN (SELECT value FROM json_each(?3)) AND fence_token = ?4
  AND request_id = ?5 AND expires_at > NOW_ISO
RETURNING lock_key

-- name: refuse_unless_held
-- The lock is held with this token (?4) and request (?5) on all of its keys, and has not expired.
INSERT INTO refusals (reason) SELECT 'refused' WHERE json_array_length(?3) <> (
    SELECT count(*) FROM lock_holds
    WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key IN (SELECT value FROM json_each(?3))
      AND fence_token = ?4 AND request_id = ?5 AND expires_at > NOW_ISO)

-- name: renew
UPDATE distributed_locks SET expires_at = ISO_IN(?6)
WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key IN (SELECT value FROM json_each(?3)) AND fence_token = ?4
  AND request_id = ?5

-- name: renew_share
UPDATE lock_shares SET expires_at = ISO_IN(?6)
WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key IN (SELECT value FROM json_each(?3)) AND fence_token = ?4
  AND request_id = ?5

-- name: expiry
SELECT min(expires_at) FROM lock_holds
WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key IN (SELECT value FROM json_each(?3)) AND fence_token = ?4
  AND request_id = ?5 AND expires_at > NOW_ISO

-- --- patterns --------------------------------------------------------------------------------------

-- name: register_pattern
INSERT INTO lock_patterns (scope_id, repository_id, number, lock_key)
SELECT ?1, ?2, generation, ?3 FROM lock_generations WHERE scope_id = ?1 AND repository_id = ?2
ON CONFLICT DO NOTHING

-- name: raise_newest_pattern
UPDATE lock_generations SET newest_pattern = (
    SELECT max(number) FROM lock_patterns WHERE scope_id = ?1 AND repository_id = ?2)
WHERE scope_id = ?1 AND repository_id = ?2

-- name: pattern
SELECT number, is_compared FROM lock_patterns WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key = ?3

-- name: patterns_after
SELECT number, lock_key FROM lock_patterns
WHERE scope_id = ?1 AND repository_id = ?2 AND number > ?3 ORDER BY number

-- name: newest_pattern
SELECT newest_pattern FROM lock_generations WHERE scope_id = ?1 AND repository_id = ?2

-- name: file_keys_in_use
SELECT lock_key FROM distributed_locks
WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key >= 'file:' AND lock_key < 'file;'
UNION SELECT lock_key FROM lock_shares
WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key >= 'file:' AND lock_key < 'file;'
UNION SELECT lock_key FROM lock_waiters
WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key >= 'file:' AND lock_key < 'file;'

-- name: mark_pattern_compared
UPDATE lock_patterns SET is_compared = 1 WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key = ?3 AND number = ?4

-- --- listing, sweeping, breaking -------------------------------------------------------------------

-- name: holders
-- Locks that have not expired: on these keys (?3), or on all but those of the mesh itself.
SELECT h.lock_key, h.fence_token, h.holder_node, h.holder_agent, h.is_shared, h.acquired_at, h.expires_at,
    h.request_id, (
    SELECT count(*) FROM lock_waiters AS w
    WHERE w.scope_id = ?1 AND w.repository_id = ?2 AND w.lock_key = h.lock_key AND w.alive_until > NOW_ISO
) AS waiting, NOW_MS AS now_ms, (
    SELECT max(s.pid) FROM lock_sessions AS s
    WHERE s.scope_id = ?1 AND s.repository_id = ?2 AND s.request_id = h.request_id AND h.request_id <> ''
      AND typeof(s.pid) = 'integer'
) AS session_pid
FROM lock_holds AS h
WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND h.expires_at > NOW_ISO
  AND CASE WHEN ?3 IS NULL THEN substr(h.lock_key, 1, 5) <> 'mesh:'
      ELSE h.lock_key IN (SELECT value FROM json_each(?3)) END
ORDER BY h.lock_key, h.fence_token

-- name: holders_near
-- Locks that have not expired on these keys (?3), or on any pattern.
SELECT h.lock_key, h.fence_token, h.holder_node, h.holder_agent, h.is_shared, h.acquired_at, h.expires_at,
    h.request_id, 0 AS waiting, NOW_MS AS now_ms, (
    SELECT max(s.pid) FROM lock_sessions AS s
    WHERE s.scope_id = ?1 AND s.repository_id = ?2 AND s.request_id = h.request_id AND h.request_id <> ''
      AND typeof(s.pid) = 'integer'
) AS session_pid
FROM lock_holds AS h
WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND h.expires_at > NOW_ISO AND h.lock_key IN (
    SELECT value FROM json_each(?3)
    UNION SELECT lock_key FROM lock_patterns WHERE scope_id = ?1 AND repository_id = ?2)
ORDER BY h.lock_key, h.fence_token

-- name: waiters
-- Live requests for keys but those of the mesh itself, in the order of each key's queue.
SELECT lock_key, holder_node, holder_agent, is_shared, waits_since, NOW_MS AS now_ms
FROM lock_waiters
WHERE scope_id = ?1 AND repository_id = ?2 AND alive_until > NOW_ISO AND substr(lock_key, 1, 5) <> 'mesh:'
ORDER BY lock_key, ticket
LIMIT ?3

-- name: sweepable
-- Except the lock that elects the sweeper, and the rows that shared locks and waiters still need.
SELECT EXISTS (
        SELECT 1 FROM distributed_locks
        WHERE scope_id = ?1 AND repository_id = ?2 AND expires_at <= NOW_ISO AND lock_key <> 'mesh:sweep'
          AND NOT (is_contended AND lock_key IN (
            SELECT lock_key FROM lock_waiters WHERE scope_id = ?1 AND repository_id = ?2
            UNION SELECT lock_key FROM lock_shares WHERE scope_id = ?1 AND repository_id = ?2)))
    OR EXISTS (SELECT 1 FROM lock_shares WHERE scope_id = ?1 AND repository_id = ?2 AND expires_at <= NOW_ISO)
    OR EXISTS (SELECT 1 FROM lock_waiters WHERE scope_id = ?1 AND repository_id = ?2 AND alive_until <= NOW_ISO)
    OR EXISTS (
        SELECT 1 FROM lock_patterns WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key NOT IN (
            SELECT lock_key FROM lock_holds WHERE scope_id = ?1 AND repository_id = ?2
            UNION SELECT lock_key FROM lock_waiters WHERE scope_id = ?1 AND repository_id = ?2))

-- name: sweep_waiters
DELETE FROM lock_waiters WHERE scope_id = ?1 AND repository_id = ?2 AND alive_until <= NOW_ISO

-- name: sweep_patterns
-- Patterns without holders and waiters. The next request for one registers it again, under a new number.
DELETE FROM lock_patterns
WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key NOT IN (
    SELECT lock_key FROM lock_holds WHERE scope_id = ?1 AND repository_id = ?2
    UNION SELECT lock_key FROM lock_waiters WHERE scope_id = ?1 AND repository_id = ?2)

-- name: sweep_overlaps
-- The overlaps of unused keys. A key that comes back records its overlaps again.
DELETE FROM lock_overlaps
WHERE scope_id = ?1 AND repository_id = ?2 AND EXISTS (
    SELECT lock_overlaps.lock_key AS lock_key UNION SELECT lock_overlaps.other_key
    EXCEPT SELECT lock_key FROM lock_holds WHERE scope_id = ?1 AND repository_id = ?2
    EXCEPT SELECT lock_key FROM lock_waiters WHERE scope_id = ?1 AND repository_id = ?2
    EXCEPT SELECT lock_key FROM lock_patterns WHERE scope_id = ?1 AND repository_id = ?2)

-- name: sweep_shares
DELETE FROM lock_shares WHERE scope_id = ?1 AND repository_id = ?2 AND expires_at <= NOW_ISO
RETURNING request_id

-- name: clear_contended_everywhere
UPDATE distributed_locks SET is_contended = 0
WHERE scope_id = ?1 AND repository_id = ?2 AND is_contended AND lock_key NOT IN (
    SELECT lock_key FROM lock_waiters WHERE scope_id = ?1 AND repository_id = ?2
    UNION SELECT lock_key FROM lock_shares WHERE scope_id = ?1 AND repository_id = ?2)

-- name: sweep_holds
DELETE FROM distributed_locks
WHERE scope_id = ?1 AND repository_id = ?2 AND expires_at <= NOW_ISO AND NOT is_contended
RETURNING request_id

-- name: break_exclusive
-- With all of its keys: a lock is held whole or not at all.
UPDATE distributed_locks SET expires_at = NOW_ISO, request_id = ''
WHERE scope_id = ?1 AND repository_id = ?2 AND request_id IN (SELECT value FROM json_each(?3))

-- name: break_shared
DELETE FROM lock_shares
WHERE scope_id = ?1 AND repository_id = ?2 AND request_id IN (SELECT value FROM json_each(?3))
