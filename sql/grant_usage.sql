-- The use of grants with rates and limits on open items, in the transactions of what is done by them.
--
-- ?1 is the scope, ?2 the repository, ?3 the limits: a JSON array of [grant, capability, times, window_ms, max_open,
-- items], where an item is [kind, id]. A use is a row. It counts for a rate until its time is out of the window, and as
-- open until its item has ended.

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- part: OF_ITS_LIMIT
c.scope_id = ?1 AND c.repository_id = ?2 AND c.grant_id = value ->> 0 AND c.capability = value ->> 1

-- part: LIMITS
-- With the number of their uses, and the time of the last one. If the clock was set back, there may be later ones.
limits (grant_id, capability, times, window_ms, max_open, uses, newest_ms) AS MATERIALIZED (
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4,
        (SELECT count(*) FROM grant_usage AS c WHERE OF_ITS_LIMIT),
        (SELECT max(c.used_ms) FROM grant_usage AS c WHERE OF_ITS_LIMIT AND c.used_ms <= NOW_MS)
    FROM json_each(?3))

-- part: OF_LIMIT
u.scope_id = ?1 AND u.repository_id = ?2 AND u.grant_id = l.grant_id AND u.capability = l.capability

-- part: IS_OPEN
-- Whether the item of the use has not ended. A lock's item is its request and its first key, that of a job that was
-- taken the job and its claim token.
CASE u.kind
WHEN 'job' THEN EXISTS (
    SELECT 1 FROM jobs AS j
    WHERE j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = u.item AND j.ended_ms IS NULL)
WHEN 'take' THEN EXISTS (
    SELECT 1 FROM jobs AS j
    WHERE j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = substr(u.item, 1, 64)
      AND j.claim_token = CAST(substr(u.item, 66) AS INTEGER) AND j.lease_until_ms IS NOT NULL)
WHEN 'lock' THEN EXISTS (
    SELECT 1 FROM distributed_locks AS h
    WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND h.lock_key = substr(u.item, 28)
      AND h.request_id = substr(u.item, 1, 26) AND h.expires_at > NOW_ISO)
    OR EXISTS (
    SELECT 1 FROM lock_shares AS s
    WHERE s.scope_id = ?1 AND s.repository_id = ?2 AND s.lock_key = substr(u.item, 28)
      AND s.request_id = substr(u.item, 1, 26) AND s.expires_at > NOW_ISO)
    OR EXISTS (
    SELECT 1 FROM lock_waiters AS w
    WHERE w.scope_id = ?1 AND w.repository_id = ?2 AND w.request_id = substr(u.item, 1, 26)
      AND w.alive_until > NOW_ISO)
WHEN 'message' THEN EXISTS (
    SELECT 1 FROM a2a_messages AS m
    WHERE m.scope_id = ?1 AND m.repository_id = ?2 AND m.message_uuid = u.item AND m.ended_ms IS NULL)
ELSE 0 END

-- part: ITEMS
-- What the script uses.
SELECT l.value ->> 0 AS grant_id, l.value ->> 1 AS capability, i.value ->> 0 AS kind, i.value ->> 1 AS item
FROM json_each(?3) AS l CROSS JOIN json_each(l.value, '$[5]') AS i

-- name: forget
-- Uses that count no more. Whether items have ended is looked up only if there are as many uses as may be open.
WITH LIMITS
DELETE FROM grant_usage WHERE OF_MESH AND (grant_id, capability, kind, item) IN (
    SELECT u.grant_id, u.capability, u.kind, u.item
    FROM limits AS l CROSS JOIN grant_usage AS u ON OF_LIMIT
    WHERE u.used_ms <= NOW_MS - coalesce(l.window_ms, 0)
      AND CASE WHEN l.max_open IS NULL THEN 1 WHEN l.uses < l.max_open THEN 0 ELSE NOT (IS_OPEN) END)

-- name: record
-- An item that was used before is the same use.
INSERT INTO grant_usage (scope_id, repository_id, grant_id, capability, kind, item, used_ms)
SELECT ?1, ?2, grant_id, capability, kind, item, NOW_MS FROM (ITEMS) WHERE true
ON CONFLICT DO NOTHING

-- name: refuse_if_many_open
-- It must follow the recording directly. What was just recorded is not there yet, and counts as open.
INSERT INTO refusals (reason) WITH LIMITS SELECT 'refused' WHERE changes() > 0 AND EXISTS (
    SELECT 1 FROM limits AS l
    WHERE CASE WHEN l.max_open IS NULL OR l.uses <= l.max_open THEN 0 ELSE l.max_open < (
        SELECT count(*) FROM grant_usage AS u
        WHERE OF_LIMIT AND CASE WHEN (u.grant_id, u.capability, u.kind, u.item) IN (ITEMS) THEN 1 ELSE IS_OPEN END)
    END)

-- name: refuse_if_often
-- The window ends with the last use.
INSERT INTO refusals (reason) WITH LIMITS SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM limits AS l
    WHERE CASE WHEN l.times IS NULL OR l.uses <= l.times THEN 0 ELSE l.times < (
        SELECT count(*) FROM grant_usage AS u WHERE OF_LIMIT AND u.used_ms > l.newest_ms - l.window_ms)
    END)

-- name: figures
-- How much of each limit is used: within its window, open, and when each use of the window was, the newest first.
WITH LIMITS
SELECT l.grant_id, l.capability, NOW_MS AS now_ms,
    (SELECT count(*) FROM grant_usage AS u WHERE OF_LIMIT AND (IS_OPEN)) AS open, (
        SELECT json_group_array(used_ms) FROM (
            SELECT u.used_ms FROM grant_usage AS u WHERE OF_LIMIT AND u.used_ms > NOW_MS - l.window_ms
            ORDER BY u.used_ms DESC)) AS used
FROM limits AS l

-- name: end
-- The uses of grants that are not in force any more.
DELETE FROM grant_usage WHERE OF_MESH AND NOT EXISTS (
    SELECT 1 FROM grants AS g
    WHERE g.scope_id = ?1 AND g.repository_id = ?2 AND g.grant_id = grant_usage.grant_id
      AND (g.until_ms IS NULL OR g.until_ms > NOW_MS))

-- name: move_lock
-- A lock was converted: it has another request. ?3: the former item, ?4: the new one.
UPDATE grant_usage SET item = ?4 WHERE OF_MESH AND kind = 'lock' AND item = ?3
