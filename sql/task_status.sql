-- The current status of tasks: the last claim of each. `?1` is the scope, `?2` the repository.
--
-- ?3: the start of the first bar that counts, ?4: the time, ?5 and ?6: the agent and the task after which to continue, ?7:
-- the last agent, ?8: the maximum of tasks.

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- part: BAR
-- The last bar that has claims. What claims to be of the future does not hide it.
(SELECT max(window_ms) FROM status_claims WHERE OF_MESH AND window_ms BETWEEN ?3 AND ?4)

-- part: BAR_BEFORE
(SELECT max(window_ms) FROM status_claims WHERE OF_MESH AND window_ms >= ?3 AND window_ms < BAR)

-- part: BAR_EARLIER
-- After a change of tempo, a bar may have begun within another one.
(SELECT max(window_ms) FROM status_claims WHERE OF_MESH AND window_ms >= ?3 AND window_ms < BAR_BEFORE)

-- part: CLAIM
-- SQLite takes the columns without an aggregate from the row with the maximum: the last claim.
agent_id, task_id, max(epoch_ms) AS epoch_ms, beat_index, state, wait_for, beats_left, progress, notes, hlc, node_id,
since_ms, phase, score, batch FROM status_claims

-- part: PAGE
(agent_id, task_id) > (?5, ?6) AND agent_id <= ?7 AND typeof(task_id) = 'text' AND epoch_ms BETWEEN ?3 AND ?4
GROUP BY agent_id, task_id LIMIT ?8

-- part: WAITED_FOR
-- The agents that a task waits for: who promised help in its threads, or was asked for it.
SELECT json_group_array(DISTINCT CAST(coalesce(t.helper, m.receiver_agent) AS TEXT))
FROM json_each(iif(json_valid(c.wait_for), c.wait_for, '[]')) AS w
CROSS JOIN help_threads AS t ON t.scope_id = ?1 AND t.repository_id = ?2
    AND t.thread_id = substr(w.value, 1 + length('hmmm://thread/'))
LEFT JOIN a2a_messages AS m ON m.scope_id = ?1 AND m.repository_id = ?2 AND m.message_uuid = t.thread_id
WHERE coalesce(t.helper, m.receiver_agent) IS NOT NULL

-- part: RECORD
-- As bytes: a server fails with all rows of an answer if one holds text that is not UTF-8.
CAST(json_array(
    CAST(c.agent_id AS TEXT), CAST(c.task_id AS TEXT), c.epoch_ms, c.beat_index, c.state, CAST(c.wait_for AS TEXT),
    c.beats_left, c.progress, CAST(c.notes AS TEXT), CAST(c.hlc AS TEXT), CAST(c.node_id AS TEXT), c.since_ms,
    CAST(c.phase AS TEXT), CAST(c.score AS TEXT), c.batch, iif(c.state = 'waiting', json((WAITED_FOR)), NULL)
) AS BLOB)

-- part: LISTED
SELECT RECORD AS record FROM (
    SELECT * FROM (SELECT CLAIM WHERE OF_MESH AND window_ms = BAR AND PAGE)
    UNION ALL SELECT * FROM (SELECT CLAIM WHERE OF_MESH AND window_ms = BAR_BEFORE AND PAGE)
    UNION ALL SELECT * FROM (SELECT CLAIM WHERE OF_MESH AND window_ms = BAR_EARLIER AND PAGE)) AS c

-- name: listed
-- The first tasks of each of the last bars, by agent and task: of two records of a task the later one counts.
LISTED

-- name: signatures
-- What the nodes have signed of these batches. ?3: arrays of a batch and its node.
SELECT batch, CAST(node_id AS BLOB) AS node_id, CAST(hashes AS BLOB) AS hashes, CAST(signature AS BLOB) AS signature
FROM json_each(?3) AS wanted
CROSS JOIN status_signatures ON OF_MESH AND batch = wanted.value ->> 0 AND node_id = wanted.value ->> 1
