-- Rollbacks of the store: how they are detected, and the one transaction that fences everything granted since.

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- part: IS_EPOCH
-- Whether the columns hold values of their kinds, and times of this era: only a hostile row does not.
(typeof(epoch) = 'integer' AND epoch BETWEEN 0 AND 9007199254740990 AND typeof(op_id) = 'text'
AND typeof(detected_ms) = 'integer' AND detected_ms BETWEEN 0 AND 253402300799999)

-- part: EPOCHS
store_epochs WHERE OF_MESH AND IS_EPOCH ORDER BY epoch DESC LIMIT 1

-- name: state
-- What the database has of this node (?3), and of the log entry with the id ?4.
SELECT NOW_MS AS now_ms, incarnation, coalesce(beats, 0) AS beats,
    coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'agent_oplog'), 0) AS last_id,
    (SELECT op_id FROM agent_oplog WHERE id = ?4) AS op_at_entry,
    coalesce((SELECT epoch FROM EPOCHS), 0) AS epoch, coalesce((SELECT op_id FROM EPOCHS), '') AS epoch_op,
    coalesce((SELECT op_id FROM store_epochs WHERE OF_MESH AND epoch = 0), '') AS origin
FROM (SELECT 1) LEFT JOIN node_incarnations ON OF_MESH AND node_id = ?3

-- name: refuse_unless_epoch
-- Another node was quicker, or the database was rolled back again: read it again.
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?3 IS NOT coalesce((SELECT op_id FROM EPOCHS), '')

-- name: raise_fences
-- Above every issued token: the known ones, the highest that the node has seen (?3), and all that the database's
-- clock can have led to. Not further: a generation ahead of the clock would keep the next tokens from carrying the
-- time, until the clock has caught up with it.
INSERT INTO lock_generations (scope_id, repository_id, generation)
VALUES (?1, ?2, max(?3, NOW_MS << 10) + 1048576)
ON CONFLICT DO UPDATE SET generation = max(min(generation, 9007199254740991) + 1048576, excluded.generation)

-- name: renumber_patterns
-- So that a process which knew later patterns reads them again.
UPDATE lock_patterns SET number = renumbered.number
FROM (
    SELECT p.lock_key, g.generation - row_number() OVER (ORDER BY p.number DESC) AS number
    FROM lock_patterns AS p JOIN lock_generations AS g
        ON g.scope_id = p.scope_id AND g.repository_id = p.repository_id
    WHERE p.scope_id = ?1 AND p.repository_id = ?2
) AS renumbered
WHERE OF_MESH AND lock_patterns.lock_key = renumbered.lock_key

-- name: number_newest_pattern
UPDATE lock_generations SET newest_pattern = coalesce((
    SELECT max(number) FROM lock_patterns WHERE OF_MESH), 0)
WHERE OF_MESH

-- name: raise_incarnations
-- Every node's next write is refused, and it finds the new epoch. ?3: the number of that epoch. The rollback may
-- reach back to before an earlier fence: its epoch is then the second one, and everything that the first one
-- granted stays below. A node that knows nothing of that fence repeats its number: the count of heartbeats carries
-- the time, and differs.
UPDATE node_incarnations
SET incarnation = max(
        min(incarnation, 9007199254740991) + 4294967296, incarnation % 4294967296 + ?3 * 4294967296),
    beats = max(min(beats, 9007199254740991) + 1048576, NOW_MS << 10)
WHERE OF_MESH

-- name: raise_claims
-- Of the jobs that can be claimed. An existing claim belongs to its worker: no other worker can have had it since.
UPDATE jobs SET claim_token = min(claim_token, 9007199254740991) + 1048576 WHERE OF_MESH AND state = 'pending'

-- name: begin_epoch
-- ?3: its number, ?4: the op, ?5: the node, ?6: the op's payload.
INSERT INTO store_epochs (scope_id, repository_id, epoch, op_id, node_id, detected_ms, detail)
VALUES (?1, ?2, ?3, ?4, ?5, NOW_MS, ?6)

-- name: forget_epochs
DELETE FROM store_epochs
WHERE OF_MESH AND epoch > 0 AND epoch <= (SELECT max(epoch) FROM store_epochs WHERE OF_MESH AND IS_EPOCH) - 1000

-- name: epochs
-- All but the first, newest first.
SELECT epoch, op_id, node_id, detected_ms, NOW_MS - detected_ms AS age_ms, detail FROM store_epochs
WHERE OF_MESH AND IS_EPOCH AND epoch > 0 ORDER BY epoch DESC
