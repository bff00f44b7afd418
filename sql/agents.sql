-- Agents: when they were last seen, and what they hold, run and wait for. `?1` is the scope, `?2` the repository.

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- name: note
-- ?3: sightings as arrays of an agent, whether it is attached, its action and the milliseconds since; ?4: the node,
-- ?5: rows younger than this many milliseconds stay, unless the agent has moved. A detached sighting does not hide that
-- the agent is attached to a node that still reports it.
INSERT INTO agent_presence (
    scope_id, repository_id, agent_id, node_id, is_attached, action, first_seen_ms, seen_ms
)
SELECT ?1, ?2, value ->> 0, ?4, value ->> 1, value ->> 2, NOW_MS - (value ->> 3), NOW_MS - (value ->> 3)
FROM json_each(?3) WHERE true
ON CONFLICT DO UPDATE SET
    node_id = excluded.node_id, is_attached = excluded.is_attached, action = excluded.action,
    seen_ms = max(seen_ms, excluded.seen_ms)
WHERE typeof(seen_ms) <> 'integer' OR seen_ms > NOW_MS OR seen_ms <= excluded.seen_ms - ?5
  OR (node_id <> excluded.node_id AND seen_ms <= excluded.seen_ms) OR is_attached < excluded.is_attached

-- name: prune
-- ?3: how long ago they were last seen, ?4: the maximum of rows that are kept, ?5: how many are pruned at once.
DELETE FROM agent_presence WHERE OF_MESH AND agent_id IN (
    SELECT agent_id FROM (
        SELECT agent_id FROM agent_presence WHERE OF_MESH AND seen_ms <= NOW_MS - ?3 LIMIT ?5)
    UNION
    SELECT agent_id FROM (
        SELECT agent_id FROM agent_presence INDEXED BY agent_presence_seen WHERE OF_MESH
        ORDER BY seen_ms DESC LIMIT ?5 OFFSET ?4))

-- part: HELD
-- Locks of agents, not of the mesh itself: the first ?8 of each agent, and their number.
SELECT holder_agent AS agent_id, count(*) AS number,
    json_group_array(CAST(lock_key AS TEXT)) FILTER (WHERE place <= ?8) AS some
FROM (
    SELECT holder_agent, lock_key, row_number() OVER (PARTITION BY holder_agent ORDER BY lock_key) AS place
    FROM lock_holds
    WHERE OF_MESH AND expires_at > ?4 AND request_id <> '' AND lock_key NOT LIKE 'mesh:%')
GROUP BY holder_agent

-- part: AWAITED
-- Keys that agents wait for.
SELECT holder_agent AS agent_id, count(*) AS number,
    json_group_array(CAST(lock_key AS TEXT)) FILTER (WHERE place <= ?8) AS some
FROM (
    SELECT holder_agent, lock_key, row_number() OVER (PARTITION BY holder_agent ORDER BY lock_key) AS place
    FROM lock_waiters WHERE OF_MESH AND alive_until > ?4)
GROUP BY holder_agent

-- part: RUNNING
-- Jobs that agents have taken, and jobs that run on the node of an agent.
SELECT agent_id, count(*) AS number,
    json_group_array(json_array(CAST(job_id AS TEXT), CAST(kind AS TEXT), CAST(started_ms AS INTEGER)))
        FILTER (WHERE place <= ?8) AS some
FROM (
    SELECT coalesce(t.agent_id, h.agent_id) AS agent_id, j.job_id, j.kind, j.started_ms,
        row_number() OVER (PARTITION BY coalesce(t.agent_id, h.agent_id) ORDER BY j.id) AS place
    FROM jobs AS j INDEXED BY jobs_held
    LEFT JOIN job_takes AS t ON t.scope_id = ?1 AND t.repository_id = ?2 AND t.job_id = j.job_id
        AND t.claim_token = j.claim_token
    LEFT JOIN mesh_heartbeats AS h ON h.scope_id = ?1 AND h.repository_id = ?2 AND h.node_id = j.claimer
    WHERE j.scope_id = ?1 AND j.repository_id = ?2 AND j.lease_until_ms > ?3)
WHERE agent_id IS NOT NULL
GROUP BY agent_id

-- part: CLAIMED
-- The last status claim of each agent in the last bar that has any, if that was within an hour.
SELECT agent_id, task_id, state, node_id, max(epoch_ms) AS epoch_ms FROM status_claims
WHERE OF_MESH AND window_ms = (SELECT max(window_ms) FROM status_claims WHERE OF_MESH) AND epoch_ms > ?3 - 3600000
GROUP BY agent_id

-- part: ANNOUNCED
-- The live node that announces each agent as its own.
SELECT agent_id, node_id, max(last_seen_ms) AS last_seen_ms FROM mesh_heartbeats
WHERE OF_MESH AND agent_id IS NOT NULL AND left_ms IS NULL AND last_seen_ms + spare_ms > ?3 - ?11 * tick_ms GROUP BY agent_id

-- part: RECEIVED
-- The node where each agent last received.
SELECT receiver_agent AS agent_id, node_id, max(seen_ms) AS seen_ms FROM a2a_receivers
WHERE OF_MESH AND receiver_agent NOT LIKE 'role:%' GROUP BY receiver_agent

-- part: RECORD
-- ?3: the time, ?4: the time as text, ?8: the maximum of items of each list, ?9: the maximum of unread messages and of
-- phrases that are counted, ?10: since when phrases are counted, ?11: ticks after which a node is dead. As bytes: a
-- server fails with all rows of an answer if one holds text that is not UTF-8.
CAST(json_array(
    n.agent_id, CAST(coalesce(a.node_id, p.node_id, r.node_id, s.node_id) AS TEXT), CAST(coalesce(p.is_attached, 0) AS INTEGER),
    a.node_id IS NOT NULL,
    (SELECT h.left_ms IS NULL AND h.last_seen_ms + h.spare_ms > ?3 - ?11 * h.tick_ms FROM mesh_heartbeats AS h
     WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND h.node_id = p.node_id),
    CAST(p.action AS TEXT), CAST(p.first_seen_ms AS INTEGER),
    CAST(max(coalesce(p.seen_ms, 0), coalesce(a.last_seen_ms, 0), coalesce(r.seen_ms, 0),
        coalesce(s.epoch_ms, 0)) AS INTEGER),
    held.number, json(held.some), awaited.number, json(awaited.some), running.number, json(running.some),
    CAST(s.task_id AS TEXT), CAST(s.state AS TEXT),
    (SELECT count(*) FROM (
        SELECT 1 FROM a2a_messages AS m INDEXED BY a2a_messages_open
        WHERE m.scope_id = ?1 AND m.repository_id = ?2 AND m.receiver_agent = n.agent_id AND m.ended_ms IS NULL
        LIMIT ?9)),
    (SELECT json_array(total(bu), total(cost)) FROM (
        SELECT e.bu, e.cost FROM phrase_ends AS e INDEXED BY phrase_ends_of_agent
        WHERE e.scope_id = ?1 AND e.repository_id = ?2 AND e.agent_id = n.agent_id AND e.ended_ms >= ?10
        ORDER BY e.ended_ms DESC LIMIT ?9))
) AS BLOB)

-- part: JOINED
LEFT JOIN agent_presence AS p ON p.scope_id = ?1 AND p.repository_id = ?2 AND p.agent_id = n.agent_id
LEFT JOIN (ANNOUNCED) AS a ON a.agent_id = n.agent_id
LEFT JOIN (RECEIVED) AS r ON r.agent_id = n.agent_id
LEFT JOIN (HELD) AS held ON held.agent_id = n.agent_id
LEFT JOIN (AWAITED) AS awaited ON awaited.agent_id = n.agent_id
LEFT JOIN (RUNNING) AS running ON running.agent_id = n.agent_id
LEFT JOIN (CLAIMED) AS s ON s.agent_id = n.agent_id

-- part: ACTIVE
-- Agents without a row of their own, because older nodes or plain commands act for them.
SELECT agent_id FROM (ANNOUNCED)
UNION SELECT agent_id FROM (RECEIVED) WHERE seen_ms >= ?6
UNION SELECT agent_id FROM (HELD)
UNION SELECT agent_id FROM (AWAITED)
UNION SELECT agent_id FROM (RUNNING)
UNION SELECT agent_id FROM (CLAIMED)

-- name: page
-- By name: after ?5, seen since ?6 or active now, at most ?7.
SELECT RECORD AS record FROM (
    SELECT CAST(agent_id AS TEXT) AS agent_id FROM (
        SELECT agent_id FROM agent_presence WHERE OF_MESH AND agent_id > ?5 AND seen_ms >= ?6
        UNION SELECT * FROM (ACTIVE) WHERE agent_id > ?5)
    WHERE typeof(agent_id) = 'text' ORDER BY agent_id LIMIT ?7
) AS n JOINED ORDER BY n.agent_id

-- part: NEWEST
-- Active agents, and those seen most recently since ?6, at most ?7 of each.
SELECT RECORD AS record FROM (
    SELECT * FROM (
        SELECT agent_id FROM agent_presence INDEXED BY agent_presence_seen
        WHERE OF_MESH AND seen_ms >= ?6 AND typeof(agent_id) = 'text' ORDER BY seen_ms DESC LIMIT ?7)
    UNION SELECT * FROM (SELECT agent_id FROM (ACTIVE) WHERE typeof(agent_id) = 'text' LIMIT ?7)
    WHERE ?5 = ''
) AS n JOINED

-- name: one
SELECT RECORD AS record FROM (SELECT ?5 AS agent_id WHERE ?7) AS n JOINED
WHERE p.agent_id IS NOT NULL OR ?5 IN (SELECT * FROM (ACTIVE))

-- name: details
-- Of the agent ?3: its locks, the jobs it has taken and scheduled, messages, and its last actions. ?4: the maximum of
-- items of each list, ?5: how many of the last entries of the log are looked through, ?6: how many open messages, ?7: the
-- time as text. As bytes, as above.
WITH acts AS MATERIALIZED (
    SELECT id, op_id, kind, hlc, accepted, reason, payload FROM agent_oplog NOT INDEXED
    WHERE id > (SELECT max(id) FROM agent_oplog) - ?5 AND OF_MESH AND agent = ?3 ORDER BY id DESC
), sent AS MATERIALIZED (
    SELECT sender_agent, receiver_agent, state FROM a2a_messages INDEXED BY a2a_messages_open
    WHERE OF_MESH AND ended_ms IS NULL LIMIT ?6
)
SELECT CAST(json_array(
    json((SELECT json_group_array(json_array(CAST(lock_key AS TEXT), CAST(expires_at AS TEXT))) FROM (
        SELECT lock_key, expires_at FROM lock_holds
        WHERE OF_MESH AND holder_agent = ?3 AND expires_at > ?7 AND request_id <> '' ORDER BY lock_key LIMIT ?4))),
    json((SELECT json_group_array(json_array(CAST(job_id AS TEXT), CAST(kind AS TEXT), CAST(state AS TEXT))) FROM (
        SELECT j.job_id, j.kind, j.state FROM job_takes AS t
        CROSS JOIN jobs AS j ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = t.job_id
            AND j.claim_token = t.claim_token AND j.lease_until_ms IS NOT NULL
        WHERE t.scope_id = ?1 AND t.repository_id = ?2 AND t.agent_id = ?3 ORDER BY j.id LIMIT ?4))),
    json((SELECT json_group_array(json_array(CAST(job_id AS TEXT), CAST(kind AS TEXT), CAST(state AS TEXT))) FROM (
        SELECT DISTINCT j.job_id, j.kind, j.state FROM acts AS a
        CROSS JOIN json_each(iif(json_valid(a.payload), a.payload, '{}'), '$.jobs') AS i
        CROSS JOIN jobs AS j ON j.scope_id = ?1 AND j.repository_id = ?2 AND j.job_id = i.value ->> 'job_id'
        WHERE a.kind = 'ScheduleJob' AND a.accepted = 1 AND j.ended_ms IS NULL LIMIT ?4))),
    (SELECT count(*) FROM sent WHERE receiver_agent = ?3 AND state = 'delivered'),
    (SELECT count(*) FROM sent WHERE sender_agent = ?3),
    json((SELECT json_group_array(json_array(
            CAST(op_id AS TEXT), CAST(kind AS TEXT), CAST(hlc AS TEXT), accepted = 1, CAST(reason AS TEXT)))
        FROM (SELECT * FROM acts ORDER BY id DESC LIMIT ?4)))
) AS BLOB)
