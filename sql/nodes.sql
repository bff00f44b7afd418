-- Nodes: their start, their heartbeats and their end.

-- name: refuse_if_in_use
-- Alive, and in another slot: for our own slot, the OS lock shows that the previous process has ended.
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM mesh_heartbeats
    WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND left_ms IS NULL AND place <> ?4
      AND last_seen_ms + spare_ms > NOW_MS - ?5 * tick_ms
)

-- name: refuse_unless_key
-- The newest known key of this node is this one, or there is none.
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?4 <> (
    SELECT public_key FROM node_keys
    WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 ORDER BY from_seq DESC LIMIT 1
)

-- part: IS_UNADMITTED
-- The mesh is strict, and the owner has not admitted the node ?3 with the key ?4, which is not the owner's either.
EXISTS (SELECT 1 FROM admitted_agents WHERE scope_id = ?1 AND repository_id = ?2 AND agent_id = '*')
AND NOT EXISTS (
    SELECT 1 FROM admitted_nodes WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND public_key = ?4
    UNION ALL
    SELECT 1 FROM mesh_owner WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND public_key = ?4)

-- name: refuse_if_unadmitted
INSERT INTO refusals (reason) SELECT 'refused' WHERE IS_UNADMITTED

-- name: is_unadmitted
SELECT IS_UNADMITTED

-- name: refuse_unless_incarnation
-- Fails if a newer incarnation of this node has begun.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM node_incarnations
    WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND incarnation = ?4
)

-- name: refuse_unless_countable
-- No node counts to 2^53: such a value was planted, and would become a float that rises no more.
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM node_incarnations
    WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND NOT (
        typeof(incarnation) = 'integer' AND incarnation BETWEEN 0 AND 9007199254740990
        AND typeof(beats) = 'integer' AND beats BETWEEN 0 AND 9007199254740990))

-- name: raise_incarnation
INSERT INTO node_incarnations (scope_id, repository_id, node_id, incarnation) VALUES (?1, ?2, ?3, 1)
ON CONFLICT DO UPDATE SET
    incarnation = min(incarnation, 9007199254740991) + 1, beats = min(beats, 9007199254740991) + 1

-- name: begin_first_epoch
-- ?3: its id. With the first node of a mesh.
INSERT INTO store_epochs (scope_id, repository_id, epoch, op_id, node_id, detected_ms, detail)
SELECT ?1, ?2, 0, ?3, ?4, NOW_MS, '{}'
WHERE NOT EXISTS (SELECT 1 FROM store_epochs WHERE scope_id = ?1 AND repository_id = ?2)

-- part: IS_EPOCH
-- Whether the columns hold values of their kinds, and times of this era: only a hostile row does not.
(typeof(e.epoch) = 'integer' AND e.epoch BETWEEN 0 AND 9007199254740990 AND typeof(e.op_id) = 'text'
AND e.op_id NOT GLOB '*[^ -~]*'
AND typeof(e.detected_ms) = 'integer' AND e.detected_ms BETWEEN 0 AND 253402300799999)

-- name: join_state
-- The state of the mesh as a node joins it.
SELECT i.incarnation, NOW_MS, coalesce((SELECT correction_ms FROM database_clock), 0), i.beats,
    coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'agent_oplog'), 0),
    e.epoch, e.op_id, coalesce(o.op_id, ''), e.detected_ms
FROM node_incarnations AS i
LEFT JOIN store_epochs AS e ON e.scope_id = ?1 AND e.repository_id = ?2 AND IS_EPOCH
LEFT JOIN store_epochs AS o ON o.scope_id = ?1 AND o.repository_id = ?2 AND o.epoch = 0
    AND o.op_id NOT GLOB '*[^ -~]*'
WHERE i.scope_id = ?1 AND i.repository_id = ?2 AND i.node_id = ?3
ORDER BY e.epoch DESC LIMIT 1

-- name: announce_version
INSERT INTO node_versions (scope_id, repository_id, node_id, incarnation, schema_version)
SELECT ?1, ?2, ?3, incarnation, ?4
FROM node_incarnations WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3
ON CONFLICT DO UPDATE SET incarnation = excluded.incarnation, schema_version = excluded.schema_version

-- part: OLDEST_LIVE_VERSION
-- A node that announced nothing in this incarnation runs code from before version 8.
SELECT min(iif(v.incarnation = h.incarnation, v.schema_version, 7))
FROM mesh_heartbeats AS h LEFT JOIN node_versions AS v USING (scope_id, repository_id, node_id)
WHERE scope_id = ?1 AND repository_id = ?2 AND h.left_ms IS NULL

-- name: oldest_live_version
OLDEST_LIVE_VERSION AND h.last_seen_ms + h.spare_ms > ?3 - max(?4, ?5 * h.tick_ms)

-- name: incarnation
SELECT incarnation, NOW_MS FROM node_incarnations
WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3

-- name: current_process
-- `has_joined`: whether a process has registered under this incarnation. A fence raises it without that.
SELECT i.incarnation, h.incarnation IS i.incarnation AS has_joined
FROM node_incarnations AS i LEFT JOIN mesh_heartbeats AS h
    ON h.scope_id = i.scope_id AND h.repository_id = i.repository_id AND h.node_id = i.node_id
WHERE i.scope_id = ?1 AND i.repository_id = ?2 AND i.node_id = ?3

-- name: request_key
INSERT INTO node_key_requests (scope_id, repository_id, node_id, public_key, host, pid, requested_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, NOW_MS)
ON CONFLICT DO UPDATE SET
    public_key = excluded.public_key, host = excluded.host, pid = excluded.pid,
    requested_ms = excluded.requested_ms

-- part: NEXT_BEAT
-- A planted value would become a float, and the others would see no further heartbeat.
iif(typeof(beats) = 'integer' AND beats < 9007199254740991, beats + 1, 1)

-- name: heartbeat
INSERT INTO mesh_heartbeats (
    scope_id, repository_id, node_id, agent_id, incarnation, beats, last_seen_ms, consuming_ms,
    progressing_ms, left_ms, started_ms, tick_ms, activity, host, pid, version, control_addr, public_key, kinds, capacity,
    load, clock_distance_ms, machine_id, place, policy_roots, spare_ms
)
SELECT ?1, ?2, ?3, ?4, incarnation, 1, NOW_MS, ?5,
    ?6, NULL, NOW_MS, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15,
    ?16, ?17, ?18, ?19, ?20, ?21
FROM node_incarnations WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3
ON CONFLICT DO UPDATE SET
    agent_id = excluded.agent_id,
    started_ms = CASE WHEN incarnation = excluded.incarnation THEN started_ms ELSE excluded.started_ms END,
    incarnation = excluded.incarnation, beats = NEXT_BEAT, last_seen_ms = excluded.last_seen_ms,
    consuming_ms = excluded.consuming_ms, progressing_ms = excluded.progressing_ms,
    left_ms = CASE WHEN incarnation = excluded.incarnation THEN left_ms END,  -- a heartbeat may arrive late
    tick_ms = excluded.tick_ms, activity = excluded.activity, host = excluded.host, pid = excluded.pid,
    version = excluded.version, control_addr = excluded.control_addr, public_key = excluded.public_key,
    kinds = excluded.kinds, capacity = excluded.capacity, load = excluded.load,
    clock_distance_ms = excluded.clock_distance_ms, machine_id = excluded.machine_id,
    place = excluded.place, policy_roots = excluded.policy_roots, spare_ms = excluded.spare_ms

-- name: announce_address
INSERT INTO node_addresses (scope_id, repository_id, node_id, control_addr, token_id, machine_id, signature)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT DO UPDATE SET
    control_addr = excluded.control_addr, token_id = excluded.token_id, machine_id = excluded.machine_id,
    signature = excluded.signature
WHERE signature <> excluded.signature

-- name: withdraw_address
DELETE FROM node_addresses WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3

-- name: addresses
SELECT node_id, control_addr, token_id, machine_id, signature FROM node_addresses
WHERE scope_id = ?1 AND repository_id = ?2

-- name: count_heartbeat
UPDATE node_incarnations SET beats = min(beats, 9007199254740991) + 1 WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3

-- name: heartbeat_state
-- What a node may rely on after its heartbeat.
SELECT NOW_MS, coalesce((SELECT correction_ms FROM database_clock), 0),
    incarnation, beats, coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'agent_oplog'), 0)
FROM node_incarnations WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3

-- name: note_vitals
INSERT INTO node_vitals (
    scope_id, repository_id, node_id, written, waiting, replica_lag_ms, cpu_utilisation, gpu_utilisation, faults)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT DO UPDATE SET
    written = excluded.written, waiting = excluded.waiting, replica_lag_ms = excluded.replica_lag_ms,
    cpu_utilisation = excluded.cpu_utilisation, gpu_utilisation = excluded.gpu_utilisation, faults = excluded.faults

-- name: leave
UPDATE mesh_heartbeats SET left_ms = NOW_MS, last_seen_ms = NOW_MS, load = 0, beats = NEXT_BEAT
WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3

-- name: pace
-- What decides how often a node sends heartbeats, at the time ?3: how many nodes are live (not silent for ?4 ticks),
-- the oldest schema version among them, and whether one has noticed a step of the database's clock.
SELECT count(*), min(iif(v.incarnation = h.incarnation, v.schema_version, 7)),
    EXISTS (SELECT 1 FROM clock_witnesses WHERE high_ms IS NOT NULL AND seen_ms > ?3 - 60000
            AND epoch = coalesce((SELECT epoch FROM database_clock), 0))
FROM mesh_heartbeats AS h LEFT JOIN node_versions AS v USING (scope_id, repository_id, node_id)
WHERE scope_id = ?1 AND repository_id = ?2 AND h.left_ms IS NULL AND h.last_seen_ms + h.spare_ms > ?3 - ?4 * h.tick_ms

-- name: refuse_unless_ended
-- It has left, or has been silent for ?4 ticks.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM mesh_heartbeats
    WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3
      AND (left_ms IS NOT NULL OR last_seen_ms + spare_ms <= NOW_MS - ?4 * tick_ms)
)

-- name: remove
-- Its keys, its entries, its incarnation and its version stay: the log is verified by them, and it may come back.
DELETE FROM mesh_heartbeats WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3

-- name: remove_vitals
DELETE FROM node_vitals WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3

-- name: remove_agents
-- Agents that were last seen there.
DELETE FROM agent_presence WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3

-- name: remove_receivers
-- Its places at inboxes. One with a lease still orders messages, and goes with its agent.
DELETE FROM a2a_receivers WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND lease_until_ms <= NOW_MS

-- name: now
-- The time of the mesh, and its difference from the database's clock.
SELECT NOW_MS, coalesce((SELECT correction_ms FROM database_clock), 0)

-- name: heartbeat_marks
-- All nodes, with what shows a new heartbeat: much less than their whole rows.
SELECT node_id, incarnation, beats FROM mesh_heartbeats
WHERE scope_id = ?1 AND repository_id = ?2 AND typeof(node_id) = 'text' ORDER BY node_id

-- name: live_heartbeat_marks
SELECT node_id, incarnation, beats FROM mesh_heartbeats
WHERE scope_id = ?1 AND repository_id = ?2 AND typeof(node_id) = 'text' AND left_ms IS NULL
  AND last_seen_ms + spare_ms >= ?3 ORDER BY node_id

-- part: IS_NODE
-- Whether all columns hold values of their kinds: only a hostile row does not.
(typeof(node_id) = 'text' AND typeof(agent_id) IN ('text', 'null')
AND typeof(incarnation) = 'integer' AND typeof(beats) = 'integer' AND typeof(pid) = 'integer'
AND typeof(last_seen_ms) = 'integer' AND abs(last_seen_ms) < 9007199254740992
AND typeof(consuming_ms) IN ('integer', 'null') AND typeof(progressing_ms) IN ('integer', 'null')
AND typeof(left_ms) IN ('integer', 'null') AND typeof(started_ms) = 'integer'
AND typeof(tick_ms) = 'integer' AND tick_ms BETWEEN 1 AND 9007199254740991
AND typeof(activity) = 'text' AND typeof(host) = 'text' AND typeof(version) = 'text'
AND typeof(control_addr) IN ('text', 'null') AND typeof(public_key) = 'text'
AND json_valid(kinds) AND typeof(kinds) = 'text' AND json_type(iif(json_valid(kinds), kinds, '0')) = 'array'
AND typeof(capacity) = 'integer' AND typeof(load) = 'integer'
AND typeof(clock_distance_ms) = 'integer' AND typeof(machine_id) = 'text' AND typeof(place) = 'text'
AND typeof(policy_roots) IN ('text', 'null')
AND typeof(spare_ms) = 'integer' AND spare_ms BETWEEN 0 AND 86400000)

-- part: VITALS
CAST(written AS INTEGER), CAST(waiting AS INTEGER), CAST(replica_lag_ms AS INTEGER),
iif(json_valid(faults), faults, NULL)

-- part: ANNOUNCED
-- The schema version that the node announced in this incarnation.
(SELECT v.schema_version FROM node_versions AS v
 WHERE v.scope_id = ?1 AND v.repository_id = ?2 AND v.node_id = mesh_heartbeats.node_id
   AND v.incarnation = mesh_heartbeats.incarnation AND typeof(v.schema_version) = 'integer')

-- name: nodes
SELECT node_id, agent_id, incarnation, beats, last_seen_ms, consuming_ms, progressing_ms, left_ms,
    started_ms, tick_ms, activity, host, pid, version, ANNOUNCED, control_addr, public_key, kinds, capacity, load,
    clock_distance_ms, machine_id, place, policy_roots, VITALS, spare_ms
FROM mesh_heartbeats LEFT JOIN node_vitals USING (scope_id, repository_id, node_id)
WHERE scope_id = ?1 AND repository_id = ?2 AND node_id IN (SELECT value FROM json_each(?3)) AND IS_NODE
