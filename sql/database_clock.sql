-- The database's clock: the testimony of the nodes, and the correction that they agree on.

-- name: read
SELECT NOW_MS AS now_ms, coalesce(max(correction_ms), 0) AS correction_ms, coalesce(max(epoch), 0) AS epoch
FROM database_clock

-- name: first_read
-- The same for a node that starts, and the evidence that the clock was set. `low_ms` and `high_ms`: the bounds of the
-- step that another node has noticed last, if it is not decided yet; `step_age_ms`: how long ago at most, by the
-- count of that node. `newest_ms`: the newest heartbeat, if most that are not too old (?2 ticks) lie ahead of the
-- clock by more than ?1. A single one may have been written while the clock was ahead. A node that has only
-- registered since the clock was set does not count, and neither does one that registered in the time that the last
-- correction took back. ?3: how old the record of a step may be. A step does not stand any more if most live nodes
-- have sent heartbeats since, by the database's clock: the clock was set right, and the witness has not withdrawn
-- yet. A registration is none: it is written whatever the time.
WITH step AS (
    SELECT w.low_ms, w.high_ms, NOW_MS - w.low_ms - w.seen_ms AS age_ms FROM clock_witnesses AS w
    WHERE w.epoch = coalesce((SELECT epoch FROM database_clock), 0) AND w.high_ms >= w.low_ms
      AND NOW_MS - w.low_ms - w.seen_ms BETWEEN -1000 AND ?3
      AND (
        SELECT 2 * coalesce(sum(h.last_seen_ms > NOW_MS - w.low_ms + ?1), 0) <= count(*) FROM mesh_heartbeats AS h
        WHERE h.left_ms IS NULL AND h.last_seen_ms + h.spare_ms > NOW_MS - w.low_ms - ?2 * h.tick_ms
          AND h.last_seen_ms > h.started_ms
      )
    ORDER BY age_ms LIMIT 1
)
SELECT NOW_MS AS now_ms, coalesce(max(correction_ms), 0) AS correction_ms, coalesce(max(epoch), 0) AS epoch,
    (SELECT low_ms FROM step) AS low_ms, (SELECT high_ms FROM step) AS high_ms,
    (SELECT age_ms FROM step) AS step_age_ms, (
        SELECT iif(2 * sum(h.last_seen_ms > NOW_MS + ?1) > count(*), max(h.last_seen_ms), NULL)
        FROM mesh_heartbeats AS h
        WHERE h.left_ms IS NULL AND h.last_seen_ms + h.spare_ms > NOW_MS - ?2 * h.tick_ms
          AND (h.last_seen_ms > h.started_ms OR h.last_seen_ms > NOW_MS + ?1 AND NOT EXISTS (
            SELECT 1 FROM database_clock AS c
            WHERE h.last_seen_ms BETWEEN c.stepped_ms AND c.stepped_ms + c.step_ms + ?1
          ))
    ) AS newest_ms
FROM database_clock

-- name: testify
-- The observation of a node (?3, incarnation ?4). ?5: the epoch, ?6 and ?7: the bounds of the step, ?8: when, by
-- its own count. NULL bounds withdraw it.
INSERT INTO clock_witnesses (scope_id, repository_id, node_id, incarnation, epoch, low_ms, high_ms, seen_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT DO UPDATE SET
    incarnation = excluded.incarnation, epoch = excluded.epoch, low_ms = excluded.low_ms,
    high_ms = excluded.high_ms, seen_ms = excluded.seen_ms

-- name: witnesses
-- The live nodes of all meshes in this database, and their testimony on this epoch (?3). ?1: the time by the
-- caller's count, ?2: the ticks after which a node is dead, ?4: the schema version since which nodes know the
-- correction. By the caller's count, a node that follows a clock that was set back has sent its heartbeats in the
-- past.
SELECT h.scope_id, h.repository_id, h.node_id, h.incarnation, h.beats,
    v.incarnation IS h.incarnation AND v.schema_version >= ?4 AS knows,
    iif(w.epoch = ?3, w.low_ms, NULL) AS low_ms, iif(w.epoch = ?3, w.high_ms, NULL) AS high_ms
FROM mesh_heartbeats AS h
LEFT JOIN clock_witnesses AS w
    ON w.scope_id = h.scope_id AND w.repository_id = h.repository_id AND w.node_id = h.node_id
    AND w.incarnation = h.incarnation
LEFT JOIN node_versions AS v
    ON v.scope_id = h.scope_id AND v.repository_id = h.repository_id AND v.node_id = h.node_id
WHERE h.left_ms IS NULL AND (
    max(h.last_seen_ms, coalesce(w.seen_ms, 0)) + h.spare_ms > ?1 - ?2 * h.tick_ms
    OR h.last_seen_ms BETWEEN NOW_MS - h.spare_ms - ?2 * h.tick_ms AND NOW_MS
)

-- part: NEXT_EPOCH
-- A planted value would become a float, and rise no more.
iif(typeof(epoch) = 'integer' AND epoch BETWEEN 0 AND 9007199254740990, epoch + 1, 1)

-- name: correct
-- The database's clock has stepped by ?2: the time of the mesh continues as if it had not. Only from the epoch
-- that the nodes agreed on (?1). ?3: when.
INSERT INTO database_clock (id, correction_ms, modifier, epoch, step_ms, stepped_ms, slewed_ms)
SELECT 1, -?2, printf('%+.3f seconds', -?2 / 1000.0), 1, ?2, ?3, ?3
WHERE ?1 = 0 OR EXISTS (SELECT 1 FROM database_clock)
ON CONFLICT (id) DO UPDATE SET
    correction_ms = correction_ms - ?2, modifier = printf('%+.3f seconds', (correction_ms - ?2) / 1000.0),
    epoch = NEXT_EPOCH, step_ms = ?2, stepped_ms = ?3, slewed_ms = ?3
WHERE epoch = ?1
RETURNING correction_ms

-- part: TOWARDS_ZERO
-- A twentieth of the time since the correction was last reduced, or the rest of it.
CASE
    WHEN correction_ms > 0 THEN -min(correction_ms, min(NOW_MS - slewed_ms, 10000) / 20)
    ELSE min(-correction_ms, min(NOW_MS - slewed_ms, 10000) / 20)
END

-- name: slew
-- If most live nodes' own clocks agree with the database's, the database's clock is right: the time of the mesh
-- runs a little faster or slower until they are equal. A node's own clock minus the database's is its distance
-- plus the correction. ?1: the ticks after which a node is dead, ?2: how far clocks that agree may lie apart.
UPDATE database_clock SET
    correction_ms = correction_ms + TOWARDS_ZERO,
    modifier = printf('%+.3f seconds', (correction_ms + TOWARDS_ZERO) / 1000.0), slewed_ms = NOW_MS
WHERE correction_ms <> 0 AND slewed_ms <= NOW_MS - 1000 AND (
    SELECT 2 * sum(abs(h.clock_distance_ms + correction_ms) <= ?2) > count(*) FROM mesh_heartbeats AS h
    WHERE h.left_ms IS NULL AND h.last_seen_ms + h.spare_ms > NOW_MS - ?1 * h.tick_ms
)

-- name: drop_correction
-- When a node starts and no other is alive: no lease exists that a step could end, so the database's clock applies
-- if the node's own (?1) agrees with it. ?2: how far they may lie apart, ?3: the ticks after which a node is dead.
UPDATE database_clock SET
    correction_ms = 0, modifier = '+0.000 seconds', epoch = NEXT_EPOCH, step_ms = -correction_ms,
    stepped_ms = RAW_MS, slewed_ms = RAW_MS
WHERE correction_ms <> 0 AND abs(RAW_MS - ?1) <= ?2 AND NOT EXISTS (
    SELECT 1 FROM mesh_heartbeats AS h WHERE h.left_ms IS NULL AND h.last_seen_ms + h.spare_ms > NOW_MS - ?3 * h.tick_ms
)

-- name: is_there
-- A database of an older version has no correction.
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'database_clock'

-- name: report
-- The correction, and how many nodes have noticed a step of the database's clock since.
SELECT coalesce((SELECT correction_ms FROM database_clock), 0) AS correction_ms, count(*) AS witnesses
FROM clock_witnesses AS w JOIN mesh_heartbeats AS h
    ON h.scope_id = w.scope_id AND h.repository_id = w.repository_id AND h.node_id = w.node_id
    AND h.incarnation = w.incarnation
WHERE w.low_ms IS NOT NULL AND w.epoch = coalesce((SELECT epoch FROM database_clock), 0) AND h.left_ms IS NULL
