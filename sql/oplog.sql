-- The op log: only its authors append to it; it is read in commit order or chain by chain.

-- part: ENTRY
-- The columns of an entry, in order.
id, node_id, seq, op_id, kind, hlc, causal_deps, payload, repository_id, prev, hash, signature, accepted, reason, result,
agent, grant

-- part: ITS_ENTRY
-- The same of `entry`, in a statement with several tables.
entry.id, entry.node_id, entry.seq, entry.op_id, entry.kind, entry.hlc, entry.causal_deps, entry.payload,
entry.repository_id, entry.prev, entry.hash, entry.signature, entry.accepted, entry.reason, entry.result,
entry.agent, entry.grant

-- from nodes: OLDEST_LIVE_VERSION

-- part: JOINED
-- No newer incarnation (?4) of this node has begun, and the database was not rolled back: it has the last
-- acknowledged heartbeat (?5), and no fence has raised the count since. Two rollbacks can lead to one incarnation.
SELECT 1 FROM node_incarnations
WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND incarnation = ?4 AND beats BETWEEN ?5 AND ?5 + 1048575

-- part: CURRENT
-- The same, and it has the newest log entry that this node knows of (?6).
JOINED AND coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'agent_oplog'), 0) >= ?6

-- name: refuse_unless_current
-- The sender was superseded, or has to rejoin first. And the time of the mesh must lie where the sender expects it
-- (?7 to ?8): if the database's clock was set, nothing may be granted or expire by it until the nodes have agreed
-- on that.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOW_MS NOT BETWEEN ?7 AND ?8 OR NOT EXISTS (CURRENT)

-- name: refuse_unless_on_time
-- The same for a command, which has no incarnation.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOW_MS NOT BETWEEN ?1 AND ?2

-- name: refuse_if_clock_was_set
-- The last check of every batch: the clock may have been set after the first one, and each statement reads it again. By
-- the database's own clock, in Julian days: the correction can't change in a transaction.
INSERT INTO refusals (reason) SELECT 'refused' WHERE julianday('now') NOT BETWEEN ?1 AND ?2

-- name: is_on_time
-- The same as a condition, in a statement that is a request by itself; by the database's own clock, since a server
-- prepares such a statement every time, and the correction would cost it more than everything else here.
SELECT 1 WHERE julianday('now') BETWEEN EARLIEST AND LATEST

-- name: is_current
-- A node's guard as a condition, in a statement that is a request by itself. It does not read the log, which would
-- cost a server too much there: if only entries were lost, the next op or heartbeat detects it.
JOINED AND julianday('now') BETWEEN EARLIEST AND LATEST

-- name: refuse_unless_current_at
-- The guard of a node's batch with ops: the chain also ends with the entry that the next one is linked to.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOW_MS NOT BETWEEN ?8 AND ?9 OR NOT EXISTS (CURRENT) OR ?7 IS NOT (
    SELECT hash FROM agent_oplog WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3
    ORDER BY seq DESC LIMIT 1
)

-- name: refuse_unless_at
-- For a chain without incarnations, that of commands: it ends there, and its key and its node's are still the one
-- that the next entry is signed with.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOW_MS NOT BETWEEN ?7 AND ?8 OR ?4 IS NOT (
    SELECT hash FROM agent_oplog WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3
    ORDER BY seq DESC LIMIT 1
) OR EXISTS (
    SELECT 1 FROM node_keys AS known
    WHERE scope_id = ?1 AND repository_id = ?2 AND node_id IN (?3, ?5) AND public_key <> ?6
      AND from_seq = (
          SELECT max(from_seq) FROM node_keys AS newer
          WHERE newer.scope_id = ?1 AND newer.repository_id = ?2 AND newer.node_id = known.node_id
      )
)

-- name: refuse_unless_chain_ends
-- As it was read: with the hash ?4, or without an entry.
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?4 IS NOT (
    SELECT hash FROM agent_oplog WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3
    ORDER BY seq DESC LIMIT 1
)

-- name: record_key
-- With the first entry of a chain: its key.
INSERT INTO node_keys (scope_id, repository_id, node_id, from_seq, public_key) VALUES (?1, ?2, ?3, 1, ?4)
ON CONFLICT DO NOTHING

-- name: append_one
-- The entry of a script that succeeded. An op that is already in the log fails, and with it the batch.
INSERT INTO agent_oplog (
    scope_id, repository_id, node_id, seq, op_id, kind, hlc, causal_deps, payload, prev, hash, signature,
    accepted, reason, agent, grant
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, 1, ?13, ?14, ?15)
RETURNING id, seq, NOW_MS

-- name: append_several
-- The same for several: arrays of the values, in this order.
WITH entries AS MATERIALIZED (SELECT key, value FROM json_each(?4))  -- which makes a value's text again at each use
INSERT INTO agent_oplog (
    scope_id, repository_id, node_id, seq, op_id, kind, hlc, causal_deps, payload, prev, hash, signature,
    accepted, reason, agent, grant
)
SELECT ?1, ?2, ?3, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4,
    value ->> 5, value ->> 6, value ->> 7, value ->> 8, 1, value ->> 9, value ->> 10, value ->> 11
FROM entries ORDER BY key
RETURNING id, seq, NOW_MS

-- name: append_verdicts
-- The entries of a batch of which some scripts may have failed: the verdict on each is stored with its key.
INSERT INTO agent_oplog (
    scope_id, repository_id, node_id, seq, op_id, kind, hlc, causal_deps, payload, prev, hash, signature,
    agent, grant, accepted, reason, result
)
SELECT ?1, ?2, ?3, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4,
    value ->> 5, value ->> 6, value ->> 7, value ->> 8, value ->> 10, value ->> 11,
    failed_statement IS NULL,
    CASE
        WHEN failed_statement IS NULL THEN value ->> 9
        ELSE coalesce(value -> 12 ->> failed_statement, 'failed')
    END,
    CASE WHEN failed_statement IS NULL AND value ->> 13 IS NOT NULL THEN (
        SELECT json_group_object(label, CASE typeof(cell) WHEN 'blob' THEN hex(cell) ELSE cell END) FROM (
            SELECT name.value AS label, CASE name.key
                WHEN 0 THEN c0 WHEN 1 THEN c1 WHEN 2 THEN c2 WHEN 3 THEN c3 WHEN 4 THEN c4 WHEN 5 THEN c5
                WHEN 6 THEN c6 WHEN 7 THEN c7 WHEN 8 THEN c8 WHEN 9 THEN c9 WHEN 10 THEN c10 ELSE c11
            END AS cell
            FROM script_answers AS answer, json_each(entry.value, '$[13]') AS name
            WHERE answer.scope_id = ?1 AND answer.repository_id = ?2
              AND answer.script_key = entry.value ->> 1 AND answer.n = (
                  SELECT min(n) FROM script_answers AS first  -- merged with others, it need not be 1
                  WHERE first.scope_id = ?1 AND first.repository_id = ?2
                    AND first.script_key = entry.value ->> 1
              )
        )
    ) END
FROM json_each(?4) AS entry LEFT JOIN script_results ON script_results.scope_id = ?1
    AND script_results.repository_id = ?2 AND script_key = value ->> 1
ORDER BY entry.key
RETURNING id, seq, NOW_MS, accepted, reason, result

-- name: seal_and_readers
-- The last seal of a chain, and the oldest version that a live node runs: it must be able to read new entries.
SELECT (
    SELECT seq FROM agent_oplog WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND kind = 'Seal'
    ORDER BY seq DESC LIMIT 1
) AS seq, (
    OLDEST_LIVE_VERSION AND h.last_seen_ms + h.spare_ms > NOW_MS - max(?4, ?5 * h.tick_ms)
) AS oldest

-- name: seal_of
-- The first seals after an entry of a chain.
SELECT ENTRY FROM agent_oplog
WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND seq > ?4 AND kind = 'Seal' ORDER BY seq LIMIT ?5

-- name: verdicts_between
-- What a seal covers: of the entries of a chain from ?4 to ?5, up to ?6 of them.
SELECT kind, id, seq, accepted, reason, result, signature FROM agent_oplog
WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND seq BETWEEN ?4 AND ?5 ORDER BY seq LIMIT ?6

-- name: chain_from
-- The end of a chain from a given entry on, as its author needs it to continue.
SELECT id, seq, op_id, kind, hlc, hash, accepted, reason, result, signature FROM agent_oplog
WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND seq >= ?4 ORDER BY seq LIMIT ?5

-- name: verdicts_of
-- With the stored answers, a row for each, in one statement: the store may be rolled back between two.
SELECT op_id, n, c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, accepted, reason
FROM agent_oplog AS o LEFT JOIN script_answers AS a
    ON a.scope_id = o.scope_id AND a.repository_id = o.repository_id AND a.script_key = o.op_id
WHERE o.scope_id = ?1 AND o.repository_id = ?2 AND o.op_id IN (SELECT value FROM json_each(?3))
ORDER BY op_id, n

-- name: entries_of
SELECT ENTRY FROM agent_oplog
WHERE scope_id = ?1 AND repository_id = ?2 AND op_id IN (SELECT value FROM json_each(?3))

-- part: MATCHING
-- Of one chain, kind and agent, and about one job, or of all.
(?3 IS NULL OR node_id = ?3) AND (?4 IS NULL OR kind = ?4) AND (?5 IS NULL OR agent = ?5)
AND (?6 IS NULL OR instr(payload, ?6) > 0)

-- name: tail
-- Entries before a given one, newest first. They are found by `id`: no index is in its order.
SELECT ENTRY FROM agent_oplog NOT INDEXED
WHERE scope_id = ?1 AND repository_id = ?2 AND MATCHING AND id < ?7
ORDER BY id DESC LIMIT ?8

-- name: chain_tail
SELECT ENTRY FROM agent_oplog
WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND MATCHING AND seq < ?7
ORDER BY seq DESC LIMIT ?8

-- name: before
-- Entries before a given one and down to another one, newest first.
SELECT ENTRY FROM agent_oplog NOT INDEXED
WHERE scope_id = ?1 AND repository_id = ?2 AND MATCHING AND id < ?7 AND id >= ?8
ORDER BY id DESC LIMIT ?9

-- name: heads_of
-- Entries without their payloads. Values of other types are planted.
SELECT op_id, id, kind, hlc, node_id, agent, accepted, reason, causal_deps FROM agent_oplog
WHERE scope_id = ?1 AND repository_id = ?2 AND op_id IN (SELECT value FROM json_each(?3))
  AND typeof(causal_deps) = 'text' AND length(causal_deps) <= 65536

-- name: after
-- Entries committed after a given one and up to another one, oldest first.
SELECT ENTRY FROM agent_oplog NOT INDEXED
WHERE scope_id = ?1 AND repository_id = ?2 AND MATCHING AND id > ?7 AND id <= ?8
ORDER BY id LIMIT ?9

-- name: accepted_of_kinds
-- Accepted entries of the kinds ?3 after ?4 and up to ?5, oldest first; a larger payload is in no honest entry.
SELECT ENTRY FROM agent_oplog NOT INDEXED
WHERE scope_id = ?1 AND repository_id = ?2 AND id > ?4 AND id <= ?5 AND accepted = 1
  AND kind IN (SELECT value FROM json_each(?3)) AND length(payload) <= 8388608
ORDER BY id LIMIT ?6

-- name: effects_before_causes
-- Accepted ops, of one chain (?3) or of all, that name a cause which was committed later, or is not in the log although
-- no rollback was recorded and it is newer than the op id ?6: older ones may be deleted; among the entries after ?4 and up to ?5. Ops that waited for others may come first.
SELECT effect.node_id, effect.seq, effect.op_id, dep.value AS cause
FROM agent_oplog AS effect NOT INDEXED
CROSS JOIN json_each(iif(json_valid(effect.causal_deps), effect.causal_deps, '[]')) AS dep
LEFT JOIN agent_oplog AS cause
    ON cause.scope_id = ?1 AND cause.repository_id = ?2 AND cause.op_id = dep.value
WHERE effect.scope_id = ?1 AND effect.repository_id = ?2 AND effect.id > ?4 AND effect.id <= ?5
  AND (?3 IS NULL OR effect.node_id = ?3) AND effect.causal_deps <> '[]' AND effect.accepted = 1
  AND effect.reason IS NOT 'deferred'
  AND iif(cause.id IS NULL, dep.value > ?6 AND NOT EXISTS (
      SELECT 1 FROM agent_oplog WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'StoreRolledBack'
  ), cause.id >= effect.id)
ORDER BY effect.id LIMIT 100

-- name: last_id
SELECT id FROM agent_oplog NOT INDEXED WHERE scope_id = ?1 AND repository_id = ?2 ORDER BY id DESC LIMIT 1

-- name: last_entry
SELECT id, op_id FROM agent_oplog NOT INDEXED WHERE scope_id = ?1 AND repository_id = ?2 ORDER BY id DESC LIMIT 1

-- name: chain_page
-- Chain by chain, each in order: a page from a given position on, of entries committed up to a given one. ?6: the id
-- of the last entry of the page before, since its other columns may be unreadable.
SELECT ENTRY FROM agent_oplog
WHERE scope_id = ?1 AND repository_id = ?2 AND (node_id, seq) > (
    coalesce((SELECT o.node_id FROM agent_oplog AS o WHERE o.id = ?6), ?3),
    coalesce((SELECT o.seq FROM agent_oplog AS o WHERE o.id = ?6), ?4)) AND (?5 IS NULL OR id <= ?5)
ORDER BY node_id, seq LIMIT ?7

-- part: REKEYED
-- A mark of the ops that decide which keys count, also of refused ones; NULL: there are none. Ids of planted entries may
-- have no sum, their lower digits do.
SELECT iif(count(*) = 0, NULL, count(*) || ' ' || sum(id & 4294967295) || ' ' || max(hlc))
FROM agent_oplog INDEXED BY agent_oplog_of_keys
WHERE scope_id = ?1 AND repository_id = ?2 AND kind IN ('RekeyNode', 'AdmitNode', 'SetStrict', 'TransferOwnership')

-- name: page_of_chain
-- The same of one chain.
SELECT ENTRY FROM agent_oplog
WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3
  AND seq > coalesce((SELECT o.seq FROM agent_oplog AS o WHERE o.id = ?6), ?4) AND (?5 IS NULL OR id <= ?5)
ORDER BY seq LIMIT ?7

-- name: page_and_mark
-- The same up to a page, with a mark of the ops by which keys were accepted.
SELECT ENTRY, (REKEYED) AS mark
FROM agent_oplog
WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND seq > ?4 ORDER BY seq LIMIT ?5

-- name: of_kind
-- Accepted entries of a kind that the index covers, after the one with the id ?4, or after a given time. Of new keys
-- also the ones that are said to be refused.
SELECT ENTRY FROM agent_oplog INDEXED BY agent_oplog_of_owner
WHERE scope_id = ?1 AND repository_id = ?2 AND kind = ?3
  AND kind IN ('DesignateCoordinator', 'RouteKind', 'RekeyNode', 'Anchor') AND (accepted = 1 OR kind = 'RekeyNode')
  AND hlc > coalesce((SELECT o.hlc FROM agent_oplog AS o WHERE o.id = ?4), ?5)
ORDER BY hlc LIMIT ?6

-- name: about_scopes
-- The accepted ops about scopes that may send messages here, after the one with the id ?3, or after a given time.
SELECT ENTRY FROM agent_oplog INDEXED BY agent_oplog_of_scopes
WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'TrustScope' AND accepted = 1
  AND hlc > coalesce((SELECT o.hlc FROM agent_oplog AS o WHERE o.id = ?3), ?4)
ORDER BY hlc LIMIT ?5

-- name: about_keys
-- The ops that decide which keys of nodes count, after the one with the id ?3, or after a given time, whatever their
-- verdicts: those are not signed.
SELECT ENTRY FROM agent_oplog INDEXED BY agent_oplog_of_keys
WHERE scope_id = ?1 AND repository_id = ?2 AND kind IN ('RekeyNode', 'AdmitNode', 'SetStrict', 'TransferOwnership')
  AND hlc > coalesce((SELECT o.hlc FROM agent_oplog AS o WHERE o.id = ?3), ?4)
ORDER BY hlc LIMIT ?5

-- name: hashes_at
-- The hashes of entries, ?3: pairs of a chain and a number.
SELECT o.node_id, o.seq, o.hash FROM json_each(?3) AS h CROSS JOIN agent_oplog AS o
WHERE o.scope_id = ?1 AND o.repository_id = ?2 AND o.node_id = h.value ->> 0 AND o.seq = h.value ->> 1

-- name: segments
-- The ops about archived segments after the entry ?3, in the order of their commits.
SELECT ENTRY FROM agent_oplog INDEXED BY agent_oplog_of_segments
WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'ArchiveSegment' AND accepted = 1 AND id > ?3
ORDER BY id LIMIT ?4

-- name: deletions
-- The ops by which archived entries may be deleted, after the entry ?3, in the order of their commits.
SELECT ENTRY FROM agent_oplog INDEXED BY agent_oplog_of_deletions
WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'DeleteArchived' AND accepted = 1 AND id > ?3
ORDER BY id LIMIT ?4

-- name: delete_archived
-- Entries of the chain ?3, from a number to another.
DELETE FROM agent_oplog
WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND seq BETWEEN ?4 AND ?5

-- name: awaited_ops
-- The ops that wait for others, and the ops that these or jobs wait for.
SELECT op_id FROM deferred_ops WHERE scope_id = ?1 AND repository_id = ?2
UNION SELECT dep.value FROM deferred_ops AS d, json_each(iif(json_valid(d.causal_deps), d.causal_deps, '[]')) AS dep
WHERE d.scope_id = ?1 AND d.repository_id = ?2
UNION SELECT predecessor FROM job_predecessors WHERE scope_id = ?1 AND repository_id = ?2 AND awaited = 'op'

-- name: refuse_unless_last_segment
-- The op ?3 recorded the last segment; NULL: there is none.
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?3 IS NOT (
    SELECT op_id FROM agent_oplog INDEXED BY agent_oplog_of_segments
    WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'ArchiveSegment' AND accepted = 1 ORDER BY id DESC LIMIT 1
)

-- name: refuse_unless_last_deletion
-- The op ?3 was the last one about deletions; NULL: there is none.
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?3 IS NOT (
    SELECT op_id FROM agent_oplog INDEXED BY agent_oplog_of_deletions
    WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'DeleteArchived' AND accepted = 1 ORDER BY id DESC LIMIT 1
)

-- name: refuse_unless_entry
-- The entry ?3 is still that of the op ?4: the database may have been rolled back since it was read.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM agent_oplog WHERE scope_id = ?1 AND repository_id = ?2 AND id = ?3 AND op_id = ?4
)

-- name: transfers
-- The ops by which the ownership passed on, after the one with the id ?3, or after a given time, whatever their
-- verdicts: those are not signed.
SELECT ENTRY FROM agent_oplog INDEXED BY agent_oplog_of_succession
WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'TransferOwnership'
  AND hlc > coalesce((SELECT o.hlc FROM agent_oplog AS o WHERE o.id = ?3), ?4)
ORDER BY hlc LIMIT ?5

-- name: transferred
-- A mark of them; NULL: there are none.
SELECT iif(count(*) = 0, NULL, count(*) || ' ' || sum(id & 4294967295) || ' ' || max(hlc))
FROM agent_oplog INDEXED BY agent_oplog_of_succession
WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'TransferOwnership'

-- name: heads
-- The last entry of each chain; a chain with entries has a key.
SELECT head.node_id, head.seq, head.hash, head.hlc
FROM (SELECT DISTINCT node_id FROM node_keys WHERE scope_id = ?1 AND repository_id = ?2) AS chain
JOIN agent_oplog AS head ON head.scope_id = ?1 AND head.repository_id = ?2 AND head.node_id = chain.node_id
    AND head.seq = (
        SELECT max(seq) FROM agent_oplog AS o
        WHERE o.scope_id = ?1 AND o.repository_id = ?2 AND o.node_id = chain.node_id
    )
ORDER BY head.node_id

-- name: refuse_unless_heads
-- ?3: heads, as an anchor has them. They were there when they were read; but the database may have been rolled
-- back since.
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM json_each(?3) AS head WHERE NOT EXISTS (
        SELECT 1 FROM agent_oplog AS o
        WHERE o.scope_id = ?1 AND o.repository_id = ?2 AND o.node_id = head.key AND o.seq = head.value ->> 0
          AND o.hash = head.value ->> 1))

-- name: keys
SELECT node_id, from_seq, public_key FROM node_keys
WHERE scope_id = ?1 AND repository_id = ?2 ORDER BY node_id, from_seq

-- name: beginnings
-- How the chains ?3 and ?4 begin, each up to its first signature: no request has more entries. At least one row;
-- each has the recorded keys of both chains, and a mark of the ops by which keys were accepted.
SELECT ITS_ENTRY, k.keys, k.mark
FROM (
    SELECT (
            SELECT json_group_array(json_array(node_id, public_key)) FROM node_keys
            WHERE scope_id = ?1 AND repository_id = ?2 AND node_id IN (?3, ?4)
              AND typeof(public_key) = 'text') AS keys,
        (REKEYED) AS mark
) AS k
CROSS JOIN (SELECT ?3 AS chain UNION ALL SELECT ?4) AS c
LEFT JOIN agent_oplog AS entry
    ON entry.scope_id = ?1 AND entry.repository_id = ?2 AND entry.node_id = c.chain AND entry.seq BETWEEN 1 AND (
        SELECT s.seq FROM agent_oplog AS s
        WHERE s.scope_id = ?1 AND s.repository_id = ?2 AND s.node_id = c.chain
          AND s.seq BETWEEN 1 AND 1024 AND s.signature IS NOT NULL
        ORDER BY s.seq LIMIT 1)
ORDER BY c.chain, entry.seq

-- name: is_open
-- Whether one of two chains has a first entry.
SELECT 1 FROM agent_oplog
WHERE scope_id = ?1 AND repository_id = ?2 AND node_id IN (?3, ?4) AND seq = 1 LIMIT 1

-- name: rekeyed
REKEYED

-- name: initialised
-- The ops that initialised the mesh, in the order of their commits: the first one is near the beginning.
SELECT ENTRY FROM agent_oplog NOT INDEXED
WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'InitialiseMesh' AND accepted = 1 AND id > ?3
ORDER BY id LIMIT ?4

-- name: key_at
SELECT public_key FROM node_keys
WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND from_seq <= ?4
ORDER BY from_seq DESC LIMIT 1

-- name: newest_key
SELECT public_key FROM node_keys
WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 ORDER BY from_seq DESC LIMIT 1

-- name: refuse_unless_rekeyed
-- The owner has accepted no further key: ?3 is the mark that was read.
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?3 IS NOT (REKEYED)

-- name: drop_planted_keys
-- Of the chain ?3, all but its keys ?4. An earlier version recorded the first one with the number 0.
DELETE FROM node_keys WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND NOT EXISTS (
    SELECT 1 FROM json_each(?4) AS k
    WHERE k.value ->> 1 = public_key AND (from_seq <= 1 OR k.value ->> 0 = from_seq))

-- name: forget_own_request
DELETE FROM node_key_requests
WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND public_key = ?4
