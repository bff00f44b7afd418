-- Messages: written by their senders, claimed by their recipients, and acknowledged, rejected or expired.
--
-- A part stands for its text wherever it is named in capitals.

-- from grants: GRANTED

-- part: WRITTEN
-- The columns that the sender wrote, and signed.
message_uuid, sender_agent, receiver_agent, msg_type, payload, priority, thread_id, correlation_id, reply_to,
expires_ms, ack_by_ms, max_attempts, hlc, sender_node, sender_incarnation, traceparent, signature

-- part: OF_ITEM
-- The same columns of an item of a JSON array.
value ->> 'message_uuid', value ->> 'sender_agent', value ->> 'receiver_agent',
value ->> 'msg_type', value ->> 'payload', value ->> 'priority', value ->> 'thread_id',
value ->> 'correlation_id', value ->> 'reply_to', value ->> 'expires_ms', value ->> 'ack_by_ms',
value ->> 'max_attempts', value ->> 'hlc', value ->> 'sender_node', value ->> 'sender_incarnation',
value ->> 'traceparent', value ->> 'signature'

-- part: IS_SAME
-- What makes it the same message, even if it was written again at another time.
sender_agent = excluded.sender_agent AND receiver_agent = excluded.receiver_agent
AND msg_type = excluded.msg_type AND payload = excluded.payload

-- part: RECORD
-- A message as one value: the sender's columns, and its state. Whatever a row holds, its columns come in their types,
-- and as bytes: a server fails with all rows of an answer if one holds text that is not UTF-8.
CAST(json_array(
    CAST(message_uuid AS TEXT), CAST(sender_agent AS TEXT), CAST(receiver_agent AS TEXT),
    CAST(msg_type AS TEXT), CAST(payload AS TEXT), CAST(priority AS INTEGER), CAST(thread_id AS TEXT),
    CAST(correlation_id AS TEXT), CAST(reply_to AS TEXT), CAST(expires_ms AS INTEGER),
    CAST(ack_by_ms AS INTEGER), CAST(max_attempts AS INTEGER), CAST(hlc AS TEXT), CAST(sender_node AS TEXT),
    CAST(sender_incarnation AS INTEGER), CAST(traceparent AS TEXT), CAST(signature AS TEXT), id,
    CAST(created_at AS TEXT), CAST(state AS TEXT), CAST(delivery_attempts AS INTEGER),
    CAST(claim_owner AS TEXT), CAST(claim_until_ms AS INTEGER), CAST(not_before_ms AS INTEGER),
    CAST(ended_reason AS TEXT), NULL, CAST(is_ordered AS INTEGER), CAST(agent_signature AS TEXT)
) AS BLOB)

-- part: HAS_PLAIN_ID
-- A column of text that is not UTF-8 can't be read.
length(CAST(message_uuid AS BLOB)) = 26 AND message_uuid NOT GLOB '*[^0-9A-Z]*'

-- name: send
-- ?1: items, ?2: scope, ?3: repository. An existing row is unchanged, and answered if it is the same message. Without
-- a grant where one is needed there is no answer.
WITH items AS MATERIALIZED (SELECT value FROM json_each(?1))  -- `json_each` makes an item's text again at each use
INSERT INTO a2a_messages (scope_id, repository_id, WRITTEN, created_at, is_ordered, agent_signature)
SELECT ?2, ?3, OF_ITEM, NOW_ISO, coalesce(value ->> 'is_ordered', 1), value ->> 'agent_signature' FROM items
WHERE (SELECT GRANTED FROM (
    SELECT ?2 AS scope, ?3 AS repository, value ->> 'sender_agent' AS agent, value ->> 'sender_node' AS node,
        value ->> 'grant' AS by_grant))
ON CONFLICT (scope_id, repository_id, message_uuid) DO UPDATE SET message_uuid = message_uuid WHERE IS_SAME
RETURNING message_uuid, message_uuid

-- name: send_one
-- The same for a single message, as a request by itself.
INSERT INTO a2a_messages (scope_id, repository_id, WRITTEN, created_at, is_ordered, agent_signature)
SELECT ?1, ?2, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, NOW_ISO, ?24, ?26
WHERE IS_CURRENT AND (SELECT GRANTED FROM (
    SELECT ?1 AS scope, ?2 AS repository, ?8 AS agent, ?20 AS node, ?25 AS by_grant))
ON CONFLICT (scope_id, repository_id, message_uuid) DO UPDATE SET message_uuid = message_uuid WHERE IS_SAME
RETURNING message_uuid, message_uuid

-- name: refuse_unless_ours
-- After a message was stored together with other changes: another message may have had its id. ?4: its signature.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM a2a_messages
    WHERE scope_id = ?1 AND repository_id = ?2 AND message_uuid = ?3 AND signature = ?4)

-- name: refuse_other_key
-- A command writes for a node: it must use the key that is known for the node.
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM node_keys AS k
    WHERE k.scope_id = ?1 AND k.repository_id = ?2 AND k.node_id IN (?3, ?4) AND k.public_key <> ?5
      AND k.from_seq = (
        SELECT max(n.from_seq) FROM node_keys AS n
        WHERE n.scope_id = ?1 AND n.repository_id = ?2 AND n.node_id = k.node_id))

-- --- receiving -------------------------------------------------------------------------------------------

-- part: OR_UNORDERED
-- If the recipient is a role: the messages that are not ordered.
UNION ALL
SELECT id FROM (
    SELECT id, is_ordered FROM a2a_messages
    WHERE scope_id = ?1 AND repository_id = ?2 AND sender_agent = p.sender AND ended_ms IS NULL
      AND receiver_agent = iif(p.receiver >= 'role:' AND p.receiver < 'role;', p.receiver, NULL)
      AND coalesce(expires_ms > clock.now, 1)
    ORDER BY hlc LIMIT 512)
WHERE NOT is_ordered

-- part: UNORDERED_OR
-- The same of a pair whose head was found that way.
SELECT h.id WHERE NOT h.is_ordered
UNION ALL

-- part: FIRSTS
-- The first ordered message of a pair; and, if the recipient is a role, the messages that are not ordered.
SELECT * FROM (
    SELECT id FROM (
        SELECT id, is_ordered FROM a2a_messages
        WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent = p.receiver AND sender_agent = p.sender
          AND ended_ms IS NULL
          AND (expires_ms IS NULL OR expires_ms > clock.now OR (
            claim_until_ms > clock.now AND NOT (instr(claim_owner, ?5) = 1 AND instr(claim_owner, ?6) <> 1)))
        ORDER BY hlc LIMIT 512)
    WHERE is_ordered LIMIT 1)
OR_UNORDERED

-- part: HEADS
-- For each sender to the recipients in ?3, its first message that can still be delivered, and the first rejected
-- one behind it. Each step seeks the next sender, so the time grows with senders, not messages. The claim in
-- question is ?4; claims that begin with ?5 but not with ?6 are of earlier incarnations of the same node, which
-- are over.
--
-- A message that arrives late, or is sent again, may precede others that are being handled: it waits for those, as
-- far as they are among the next few. An inbox that another node has leased is free when that lease ends.
--
-- Of messages that are not ordered, each is a head of its own; 512 messages of a pair are looked at, from the oldest on.
pairs (receiver, sender) AS (
    SELECT value, (
        SELECT min(sender_agent) FROM a2a_messages
        WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent = value AND ended_ms IS NULL)
    FROM json_each(?3)
    UNION ALL
    SELECT receiver, (
        SELECT min(sender_agent) FROM a2a_messages
        WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent = pairs.receiver
          AND sender_agent > pairs.sender AND ended_ms IS NULL)
    FROM pairs WHERE sender IS NOT NULL
),
heads AS (
    SELECT p.receiver, p.sender, m.id, m.message_uuid, m.hlc, m.priority, m.is_ordered, clock.now, coalesce(m.claim_owner, '') = ?4 AS is_ours,
        max(
            coalesce(m.not_before_ms, 0),
            CASE WHEN m.claim_owner = ?4 OR (instr(m.claim_owner, ?5) = 1 AND instr(m.claim_owner, ?6) <> 1)
                THEN 0 ELSE coalesce(m.claim_until_ms, 0) END,
            CASE WHEN m.claim_until_ms > clock.now THEN 0 ELSE coalesce((
                SELECT max(claim_until_ms) FROM (
                    SELECT claim_owner, claim_until_ms, is_ordered FROM a2a_messages
                    WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent = p.receiver
                      AND sender_agent = p.sender AND ended_ms IS NULL AND hlc > m.hlc
                    ORDER BY hlc LIMIT 8)
                WHERE m.is_ordered AND is_ordered AND claim_owner <> ?4 AND NOT (instr(claim_owner, ?5) = 1 AND instr(claim_owner, ?6) <> 1)
            ), 0) END,
            coalesce((
                SELECT max(lease_until_ms) FROM a2a_receivers
                WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent = p.receiver
                  AND node_id || '#' <> ?5), 0)
        ) AS free_ms,
        m.delivery_attempts >= m.max_attempts AND coalesce(m.claim_owner, '') <> ?4 AS is_exhausted,
        (SELECT min(hlc) FROM a2a_messages
         WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent = p.receiver
           AND sender_agent = p.sender AND ended_ms IS NULL AND is_ordered AND not_before_ms IS NOT NULL
           AND not_before_ms > clock.now AND (expires_ms IS NULL OR expires_ms > clock.now)) AS barrier
    FROM pairs AS p CROSS JOIN clock
    JOIN a2a_messages AS m ON m.id IN (FIRSTS)
    WHERE p.sender IS NOT NULL
)

-- name: claimable
-- Whether there is anything to claim: one message or, if there are more, two, each with whether it is the only one
-- of its pair. ?7: the time, as the caller knows it.
WITH RECURSIVE clock (now) AS (SELECT ?7), HEADS
SELECT iif(HAS_PLAIN_ID, message_uuid, NULL) AS message_uuid, NOT EXISTS (
    SELECT 1 FROM a2a_messages
    WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent = receiver AND sender_agent = sender
      AND ended_ms IS NULL AND hlc > heads.hlc) AS is_alone
FROM heads WHERE free_ms <= now LIMIT 2

-- name: claimable_quick
-- A much cheaper check for the usual case: nothing waits, or a single message. ?4: the time, ?5: as above.
SELECT iif(HAS_PLAIN_ID, message_uuid, NULL) AS message_uuid, CAST(max(
        coalesce(claim_until_ms, 0), coalesce(not_before_ms, 0), coalesce((
        SELECT max(lease_until_ms) FROM a2a_receivers AS l
        WHERE l.scope_id = ?1 AND l.repository_id = ?2 AND l.receiver_agent = a2a_messages.receiver_agent
          AND l.node_id || '#' <> ?5), 0)) AS INTEGER) AS free_ms
FROM a2a_messages
WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent IN (SELECT value FROM json_each(?3))
  AND ended_ms IS NULL AND (expires_ms IS NULL OR expires_ms > ?4)
LIMIT 2

-- name: next_free
-- When there will be something to claim, if there is nothing now.
WITH RECURSIVE clock (now) AS (SELECT ?7), HEADS
SELECT min(free_ms) FROM heads WHERE typeof(free_ms) = 'integer'

-- name: nonempty_inboxes
-- The inboxes that hold a message which has not ended. Each step seeks the next inbox. ?3: how many.
WITH RECURSIVE inboxes (receiver) AS (
    SELECT min(receiver_agent) FROM a2a_messages
    WHERE scope_id = ?1 AND repository_id = ?2 AND ended_ms IS NULL
    UNION ALL
    SELECT (
        SELECT min(receiver_agent) FROM a2a_messages
        WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent > inboxes.receiver AND ended_ms IS NULL)
    FROM inboxes WHERE receiver IS NOT NULL
    LIMIT ?3
)
SELECT CAST(receiver AS BLOB) FROM inboxes WHERE receiver IS NOT NULL

-- part: FREE_MS
max(coalesce(o.not_before_ms, 0), CASE WHEN instr(o.claim_owner, ?5) = 1 AND instr(o.claim_owner, ?6) <> 1
    THEN 0 ELSE coalesce(o.claim_until_ms, 0) END)

-- name: free_times
-- When each of the inboxes in ?3 has something to claim, or earlier: by the first message of each pair alone. An
-- inbox that has something now needs no check of its other pairs. ?4: the time, as the caller knows it, ?5 and ?6
-- as above.
WITH RECURSIVE pairs (receiver, sender, free_ms) AS (
    SELECT value, '', ?4 + 1 FROM json_each(?3)
    UNION ALL
    SELECT p.receiver, m.sender_agent, max(
        CASE WHEN p.receiver >= 'role:' AND p.receiver < 'role;' THEN (
            SELECT min(free_ms) FROM (
                SELECT FREE_MS AS free_ms FROM a2a_messages AS o
                WHERE o.scope_id = ?1 AND o.repository_id = ?2 AND o.receiver_agent = p.receiver
                  AND o.sender_agent = m.sender_agent AND o.ended_ms IS NULL AND (NOT o.is_ordered OR o.id = m.id)
                  AND (o.expires_ms IS NULL OR o.expires_ms > ?4)
                ORDER BY o.hlc LIMIT 512))
        ELSE coalesce(m.not_before_ms, 0) END,
        CASE WHEN p.receiver >= 'role:' AND p.receiver < 'role;' THEN 0
            WHEN instr(m.claim_owner, ?5) = 1 AND instr(m.claim_owner, ?6) <> 1
            THEN 0 ELSE coalesce(m.claim_until_ms, 0) END,
        coalesce((
            SELECT max(lease_until_ms) FROM a2a_receivers
            WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent = p.receiver
              AND node_id || '#' <> ?5), 0))
    FROM pairs AS p JOIN a2a_messages AS m ON m.id = (
        SELECT id FROM a2a_messages
        WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent = p.receiver AND sender_agent > p.sender
          AND ended_ms IS NULL
          AND (expires_ms IS NULL OR expires_ms > ?4 OR (
            claim_until_ms > ?4 AND NOT (instr(claim_owner, ?5) = 1 AND instr(claim_owner, ?6) <> 1)))
        ORDER BY sender_agent, hlc LIMIT 1)
    WHERE p.free_ms > ?4
)
SELECT receiver, CAST(min(free_ms) AS INTEGER) AS free_ms FROM pairs WHERE sender <> '' GROUP BY receiver

-- name: claim_one
-- For a message that is the only one of its pair, as most are, or not ordered: much cheaper than `claim`, and a request
-- by itself. ?7: the message, ?8: the claim, ?9: for how long.
UPDATE a2a_messages AS m SET
    state = 'delivered', delivery_attempts = delivery_attempts + (coalesce(claim_owner, '') <> ?8),
    claim_owner = ?8, claim_until_ms = NOW_MS + ?9, not_before_ms = NULL
WHERE scope_id = ?1 AND repository_id = ?2 AND message_uuid = ?7 AND ended_ms IS NULL
  AND (expires_ms IS NULL OR expires_ms > NOW_MS)
  AND (claim_owner = ?8 OR (
    delivery_attempts < max_attempts AND max(coalesce(claim_until_ms, 0), coalesce(not_before_ms, 0)) <= NOW_MS))
  AND NOT EXISTS (
    SELECT 1 FROM a2a_messages AS o
    WHERE m.is_ordered AND o.scope_id = ?1 AND o.repository_id = ?2 AND o.receiver_agent = m.receiver_agent
      AND o.sender_agent = m.sender_agent AND o.ended_ms IS NULL AND o.hlc <> m.hlc)
  AND NOT EXISTS (
    SELECT 1 FROM a2a_receivers AS l
    WHERE l.scope_id = ?1 AND l.repository_id = ?2 AND l.receiver_agent = m.receiver_agent
      AND l.lease_until_ms > NOW_MS AND instr(?8, l.node_id || '#') <> 1)
  AND IS_CURRENT
RETURNING RECORD

-- name: undeliverable
-- Of some messages, the ones not to be delivered, or not now. ?4: the time, as the caller knows it.
SELECT message_uuid FROM json_each(?3) JOIN a2a_messages
    ON scope_id = ?1 AND repository_id = ?2 AND message_uuid = value
WHERE ended_ms IS NOT NULL OR claim_until_ms > ?4

-- name: is_first
-- Whether no earlier message of its pair waits. ?3: recipient, ?4: sender, ?5: its time.
SELECT NOT EXISTS (
    SELECT 1 FROM a2a_messages
    WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent = ?3 AND sender_agent = ?4
      AND ended_ms IS NULL AND hlc < ?5)

-- name: dead_letter_exhausted
UPDATE a2a_messages SET state = 'dead', ended_ms = NOW_MS, ended_reason = 'not acknowledged in ' || max_attempts
    || CASE max_attempts WHEN 1 THEN ' attempt' ELSE ' attempts' END,
    claim_until_ms = NULL, not_before_ms = NULL
WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent IN (SELECT value FROM json_each(?3))
  AND ended_ms IS NULL AND delivery_attempts >= max_attempts AND coalesce(claim_owner, '') <> ?4
  AND (coalesce(claim_until_ms, 0) <= NOW_MS OR (instr(claim_owner, ?5) = 1 AND instr(claim_owner, ?6) <> 1))

-- name: claim
-- Idempotent: the same claim gets the same messages. Only the first of each pair counts as an attempt: the others
-- may be released because of it. ?7: for how long, ?8: how many, ?9: of one pair, ?10: the total of characters in
-- their bodies, since a server limits its answers.
WITH RECURSIVE clock (now) AS (SELECT NOW_MS), HEADS,
few AS (
    SELECT m.id, m.id = h.id AS is_head, h.now, coalesce(m.claim_owner, '') = ?4 AS is_ours, h.priority, m.hlc,
        length(m.payload) AS size
    FROM (
        SELECT * FROM heads WHERE free_ms <= now AND NOT is_exhausted
        ORDER BY is_ours DESC, priority DESC, hlc LIMIT ?8
    ) AS h
    JOIN a2a_messages AS m ON m.id IN (
        UNORDERED_OR
        SELECT * FROM (
            SELECT id FROM (
                SELECT id, is_ordered FROM a2a_messages
                WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent = iif(h.is_ordered, h.receiver, NULL)
                  AND sender_agent = h.sender AND ended_ms IS NULL AND hlc >= h.hlc
                  AND (h.barrier IS NULL OR hlc < h.barrier) AND (expires_ms IS NULL OR expires_ms > h.now)
                  AND (coalesce(claim_until_ms, 0) <= h.now OR claim_owner = ?4
                    OR (instr(claim_owner, ?5) = 1 AND instr(claim_owner, ?6) <> 1))
                ORDER BY hlc LIMIT 512)
            WHERE is_ordered LIMIT ?9))
    ORDER BY 4 DESC, h.priority DESC, m.hlc LIMIT ?8
),
chosen AS MATERIALIZED (
    SELECT id, is_head, now FROM (
        SELECT *, sum(size) OVER (ORDER BY is_ours DESC, priority DESC, hlc, id) - size AS size_before FROM few
    ) WHERE size_before < ?10
)
UPDATE a2a_messages SET
    state = 'delivered',
    delivery_attempts = delivery_attempts + (chosen.is_head AND coalesce(claim_owner, '') <> ?4),
    claim_owner = ?4, claim_until_ms = chosen.now + ?7, not_before_ms = NULL
FROM chosen WHERE a2a_messages.id = chosen.id
  AND a2a_messages.id IN (SELECT id FROM chosen)  -- otherwise newer versions of SQLite read every message
RETURNING RECORD

-- name: ack
-- ?1: items, ?2: scope, ?3: repository. Idempotent for the same claim.
UPDATE a2a_messages SET
    state = 'acked', acknowledged = 1, claim_until_ms = NULL, ended_ms = coalesce(ended_ms, NOW_MS)
WHERE scope_id = ?2 AND repository_id = ?3
  AND message_uuid IN (SELECT value ->> 'message_uuid' FROM json_each(?1))
  AND (message_uuid, claim_owner) IN (
    SELECT value ->> 'message_uuid', value ->> 'claim_owner' FROM json_each(?1))
  AND (acknowledged = 1 OR (ended_ms IS NULL AND claim_until_ms > NOW_MS))
RETURNING message_uuid, message_uuid

-- name: ack_one
UPDATE a2a_messages SET
    state = 'acked', acknowledged = 1, claim_until_ms = NULL, ended_ms = coalesce(ended_ms, NOW_MS)
WHERE scope_id = ?1 AND repository_id = ?2 AND message_uuid = ?7 AND claim_owner = ?8
  AND (acknowledged = 1 OR (ended_ms IS NULL AND claim_until_ms > NOW_MS)) AND IS_CURRENT
RETURNING message_uuid, message_uuid

-- name: ack_on_arrival
-- Acknowledge relayed messages that were handed out while the database was unreachable: the row may be there or not.
-- It answers nothing for a message that has ended, or that is claimed by another process; a claim of the same process
-- covers it. Both names end with a ULID of 26 characters. ?1: items.
INSERT INTO a2a_messages (
    scope_id, repository_id, WRITTEN, created_at, state, acknowledged, claim_owner, delivery_attempts, ended_ms,
    agent_signature
)
SELECT ?2, ?3, OF_ITEM, NOW_ISO, 'acked', 1, value ->> 'claim_owner', 1, NOW_MS, value ->> 'agent_signature'
FROM json_each(?1) WHERE true
ON CONFLICT (scope_id, repository_id, message_uuid) DO UPDATE SET
    state = 'acked', acknowledged = 1, claim_owner = excluded.claim_owner, claim_until_ms = NULL,
    ended_ms = coalesce(ended_ms, excluded.ended_ms)
WHERE IS_SAME AND (
    (acknowledged = 1 AND claim_owner = excluded.claim_owner)
    OR (ended_ms IS NULL AND (
        coalesce(claim_until_ms, 0) <= NOW_MS
        OR 'arrival:' || substr(claim_owner, 1, length(claim_owner) - 26)
            = substr(excluded.claim_owner, 1, length(excluded.claim_owner) - 26))))
RETURNING message_uuid, message_uuid

-- name: refuse_unless_held_back
-- For a rejection, which may be repeated.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM a2a_messages
    WHERE scope_id = ?1 AND repository_id = ?2 AND message_uuid = ?3 AND claim_owner = ?4
      AND ((ended_ms IS NULL AND claim_until_ms > NOW_MS) OR not_before_ms IS NOT NULL OR state = 'dead'))

-- name: release_behind
-- The later messages of the same sender must wait too, and were not attempted.
UPDATE a2a_messages SET state = 'stored', claim_until_ms = NULL
WHERE id IN (
    SELECT m.id FROM a2a_messages AS b JOIN a2a_messages AS m
        ON m.scope_id = b.scope_id AND m.repository_id = b.repository_id
        AND m.receiver_agent = b.receiver_agent AND m.sender_agent = b.sender_agent AND m.ended_ms IS NULL
        AND m.hlc > b.hlc AND m.is_ordered
    WHERE b.scope_id = ?1 AND b.repository_id = ?2 AND b.message_uuid = ?3 AND b.is_ordered
    ORDER BY m.hlc LIMIT 256)
  AND claim_owner = ?4 AND claim_until_ms IS NOT NULL

-- name: reject
-- ?5: after how many milliseconds it may be redelivered, ?6: why, ?7: its number of attempts.
UPDATE a2a_messages SET
    state = iif(?7 >= max_attempts, 'dead', 'stored'),
    ended_ms = iif(?7 >= max_attempts, NOW_MS, NULL),
    ended_reason = iif(?7 >= max_attempts, coalesce(?6, 'given back too often'), NULL),
    not_before_ms = iif(?7 >= max_attempts, NULL, NOW_MS + ?5),
    delivery_attempts = ?7, claim_until_ms = NULL
WHERE scope_id = ?1 AND repository_id = ?2 AND message_uuid = ?3 AND claim_owner = ?4
  AND ended_ms IS NULL AND claim_until_ms IS NOT NULL

-- name: dead_letter
-- ?3: its position, since its id may be unreadable.
UPDATE a2a_messages SET
    state = 'dead', ended_ms = NOW_MS, ended_reason = ?5, claim_until_ms = NULL, not_before_ms = NULL
WHERE scope_id = ?1 AND repository_id = ?2 AND id = ?3 AND claim_owner = ?4 AND ended_ms IS NULL

-- name: renew
-- Everything claimed together. ?3: messages, ?4: the claim, ?5: for how long.
UPDATE a2a_messages SET claim_until_ms = NOW_MS + ?5
WHERE scope_id = ?1 AND repository_id = ?2 AND message_uuid IN (SELECT value FROM json_each(?3))
  AND claim_owner = ?4 AND ended_ms IS NULL AND claim_until_ms > NOW_MS
RETURNING message_uuid

-- name: release
-- Release messages that were not handed out. ?3: pairs of a message and its claim, ?4: the former number of
-- attempts of each.
UPDATE a2a_messages SET
    state = 'stored', claim_until_ms = NULL, delivery_attempts = max(0, delivery_attempts - ?4)
WHERE scope_id = ?1 AND repository_id = ?2 AND ended_ms IS NULL AND claim_until_ms IS NOT NULL
  AND message_uuid IN (SELECT value ->> 0 FROM json_each(?3))
  AND (message_uuid, claim_owner) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?3))

-- name: release_claim
-- Release everything that a claim got, when the answer is unknown. ?3: recipients, ?4: the claim.
UPDATE a2a_messages SET state = 'stored', claim_until_ms = NULL
WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent IN (SELECT value FROM json_each(?3))
  AND ended_ms IS NULL AND claim_until_ms IS NOT NULL AND claim_owner = ?4

-- --- addressing ------------------------------------------------------------------------------------------

-- name: open_inboxes
INSERT INTO a2a_inboxes (scope_id, repository_id, receiver_agent, node_id, seen_ms)
SELECT ?1, ?2, value, ?4, NOW_MS FROM json_each(?3) WHERE true
ON CONFLICT DO UPDATE SET
    node_id = iif(excluded.node_id = '', node_id, excluded.node_id), seen_ms = excluded.seen_ms

-- name: receive_from
-- Record who receives from these inboxes. ?3: names, ?4: a node, or the chain of a command.
INSERT INTO a2a_receivers (scope_id, repository_id, receiver_agent, node_id, seen_ms)
SELECT ?1, ?2, value, ?4, NOW_MS FROM json_each(?3) WHERE true
ON CONFLICT DO UPDATE SET seen_ms = excluded.seen_ms

-- name: lease_if_alone
-- Lease inboxes from which only this node has received lately, or renew their leases. It answers the leased ones.
-- Roles are never leased: another node must be able to take over their messages when this one crashes.
-- ?5: for how long, ?6: how long ago is lately, ?7: inboxes whose lease is renewed even if others want to receive,
-- since messages are being handled under it, ?8: ticks after which a node is dead, ?9: the schema version since
-- which nodes respect leases.
UPDATE a2a_receivers AS r SET lease_until_ms = NOW_MS + ?5
WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent IN (SELECT value FROM json_each(?3)) AND node_id = ?4
  AND NOT (receiver_agent >= 'role:' AND receiver_agent < 'role;')
  AND NOT EXISTS (
    SELECT 1 FROM a2a_receivers AS o
    WHERE o.scope_id = ?1 AND o.repository_id = ?2 AND o.receiver_agent = r.receiver_agent AND o.node_id <> ?4
      AND (o.lease_until_ms > NOW_MS OR (
        o.seen_ms > NOW_MS - ?6 AND NOT EXISTS (SELECT 1 FROM json_each(?7) WHERE value = r.receiver_agent))))
  AND NOT EXISTS (
    SELECT 1 FROM mesh_heartbeats AS h LEFT JOIN node_versions AS v USING (scope_id, repository_id, node_id)
    WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND h.left_ms IS NULL
      AND h.last_seen_ms + h.spare_ms > NOW_MS - ?8 * h.tick_ms
      AND coalesce(iif(v.incarnation = h.incarnation, v.schema_version, 0), 0) < ?9)
RETURNING receiver_agent

-- name: other_receivers
-- Inboxes from which other nodes have received as well. ?4: this node, ?5: since when.
SELECT DISTINCT receiver_agent FROM a2a_receivers
WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent IN (SELECT value FROM json_each(?3))
  AND node_id <> ?4 AND seen_ms > ?5

-- name: release_leases
UPDATE a2a_receivers SET lease_until_ms = 0
WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent IN (SELECT value FROM json_each(?3)) AND node_id = ?4

-- name: stop_receiving
DELETE FROM a2a_receivers
WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent IN (SELECT value FROM json_each(?3)) AND node_id = ?4

-- name: node_of
-- The node where an agent last received, or else the node that announces the agent.
SELECT h.node_id, a.control_addr, a.token_id, a.machine_id, a.signature, h.left_ms, h.last_seen_ms, h.tick_ms,
    CAST(h.spare_ms AS INTEGER)
FROM mesh_heartbeats AS h LEFT JOIN node_addresses AS a USING (scope_id, repository_id, node_id)
WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND h.node_id = coalesce(
    (SELECT nullif(node_id, '') FROM a2a_inboxes
     WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent = ?3),
    (SELECT node_id FROM mesh_heartbeats
     WHERE scope_id = ?1 AND repository_id = ?2 AND agent_id = ?3 AND left_ms IS NULL
     ORDER BY last_seen_ms DESC LIMIT 1))

-- name: node_named
SELECT h.node_id, a.control_addr, a.token_id, a.machine_id, a.signature, h.left_ms, h.last_seen_ms, h.tick_ms,
    CAST(h.spare_ms AS INTEGER)
FROM mesh_heartbeats AS h JOIN node_addresses AS a USING (scope_id, repository_id, node_id)
WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND h.node_id = ?3

-- name: node_at
SELECT h.node_id, a.control_addr, a.token_id, a.machine_id, a.signature, h.left_ms, h.last_seen_ms, h.tick_ms,
    CAST(h.spare_ms AS INTEGER)
FROM mesh_heartbeats AS h JOIN node_addresses AS a USING (scope_id, repository_id, node_id)
WHERE h.scope_id = ?1 AND h.repository_id = ?2 AND a.control_addr = ?3
ORDER BY h.last_seen_ms DESC LIMIT 1

-- name: recent_agents
-- Agents that have received lately, or that a live node announces. ?3: since when, ?4: the time.
SELECT receiver_agent FROM a2a_inboxes
WHERE scope_id = ?1 AND repository_id = ?2 AND seen_ms >= ?3 AND receiver_agent NOT LIKE 'role:%'
UNION
SELECT agent_id FROM mesh_heartbeats
WHERE scope_id = ?1 AND repository_id = ?2 AND agent_id IS NOT NULL AND left_ms IS NULL
  AND last_seen_ms + spare_ms >= ?4 - ?5 * tick_ms
ORDER BY 1

-- name: relayed_state
-- What is known of relayed messages: in the row without an id the sender's incarnation; for each stored one its
-- content if its signature differs, and whether it has ended. ?3: the node, ?4: pairs of an id and a signature.
SELECT NULL AS message_uuid, NULL AS words, incarnation AS number
FROM node_incarnations WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3
UNION ALL
SELECT message_uuid,
    iif(signature = value ->> 1, NULL, json_array(sender_agent, receiver_agent, msg_type, payload)),
    ended_ms IS NOT NULL
FROM json_each(?4) JOIN a2a_messages ON scope_id = ?1 AND repository_id = ?2 AND message_uuid = value ->> 0

-- --- queries -----------------------------------------------------------------------------------------------

-- name: peek
-- The waiting messages of some recipients, after a position, in the order of their commits. ?5: the time.
SELECT RECORD
FROM a2a_messages
WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent IN (SELECT value FROM json_each(?3))
  AND ended_ms IS NULL AND id > ?4 AND (expires_ms IS NULL OR expires_ms > ?5)
ORDER BY id LIMIT ?6

-- name: list
-- The newest first. ?3: a state, ?4: sender, ?5: recipient, ?7 and ?8: before and down to which one.
SELECT RECORD
FROM a2a_messages
WHERE +scope_id = ?1 AND +repository_id = ?2  -- by number, without sorting all of them
  AND (?3 IS NULL OR state = ?3) AND (?4 IS NULL OR sender_agent = ?4) AND (?5 IS NULL OR receiver_agent = ?5)
  AND id < ?7 AND id >= ?8
ORDER BY id DESC LIMIT ?9

-- name: list_of_thread
-- The same of one thread (?6), of which the first message may have only its id.
SELECT RECORD
FROM a2a_messages
WHERE id IN (
    SELECT t.id FROM a2a_messages AS t INDEXED BY a2a_messages_of_thread
    WHERE t.scope_id = ?1 AND t.repository_id = ?2 AND t.thread_id = ?6
      AND t.id < ?7 AND t.id >= ?8
    UNION ALL
    SELECT f.id FROM a2a_messages AS f WHERE f.scope_id = ?1 AND f.repository_id = ?2 AND f.message_uuid = ?6)
  AND (?3 IS NULL OR state = ?3) AND (?4 IS NULL OR sender_agent = ?4) AND (?5 IS NULL OR receiver_agent = ?5)
  AND id < ?7 AND id >= ?8
ORDER BY id DESC LIMIT ?9

-- name: deliverable_of
-- The messages of a node that wait or are dead letters, after a position, in the order of their commits.
SELECT RECORD
FROM a2a_messages
WHERE +scope_id = ?1 AND +repository_id = ?2 AND sender_node = ?3 AND state IN ('stored', 'delivered', 'dead')
  AND id > ?4
ORDER BY id LIMIT ?5

-- name: newest
SELECT max(id) FROM a2a_messages

-- name: beginning_with
SELECT RECORD
FROM a2a_messages
WHERE scope_id = ?1 AND repository_id = ?2 AND message_uuid >= ?3 AND message_uuid < ?3 || '~'
ORDER BY message_uuid LIMIT 2

-- name: threads
SELECT thread_id, count(*) + EXISTS (  -- including its first message, which has no thread
        SELECT 1 FROM a2a_messages AS f
        WHERE f.scope_id = ?1 AND f.repository_id = ?2 AND f.message_uuid = t.thread_id AND f.thread_id IS NULL
    ) AS messages, sum(ended_ms IS NULL) AS open, min(created_at) AS began_at,
    max(created_at) AS last_at
FROM a2a_messages AS t WHERE scope_id = ?1 AND repository_id = ?2 AND thread_id IS NOT NULL
GROUP BY thread_id ORDER BY max(id) DESC LIMIT ?3

-- name: counts
SELECT state, count(*) AS messages FROM a2a_messages
WHERE scope_id = ?1 AND repository_id = ?2 GROUP BY state

-- name: retry
-- A dead letter becomes deliverable again, with all of its attempts.
UPDATE a2a_messages SET
    state = 'stored', ended_ms = NULL, ended_reason = NULL, delivery_attempts = 0, claim_owner = NULL,
    claim_until_ms = NULL, not_before_ms = NULL, overdue_ms = NULL
WHERE scope_id = ?1 AND repository_id = ?2 AND message_uuid = ?3 AND state = 'dead'

-- name: refuse_unless_dead
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM a2a_messages
    WHERE scope_id = ?1 AND repository_id = ?2 AND message_uuid = ?3 AND state = 'dead')

-- --- maintenance -------------------------------------------------------------------------------------------

-- name: overdue
-- Messages past their acknowledgement deadline. ?3: the time, ?4: only if the sender has got no notice yet.
SELECT RECORD
FROM a2a_messages
WHERE scope_id = ?1 AND repository_id = ?2 AND acknowledged = 0 AND ack_by_ms IS NOT NULL AND ack_by_ms <= ?3
  AND (NOT ?4 OR overdue_ms IS NULL)
ORDER BY ack_by_ms LIMIT ?5

-- name: mark_overdue_reported
UPDATE a2a_messages SET overdue_ms = NOW_MS
WHERE scope_id = ?1 AND repository_id = ?2 AND acknowledged = 0 AND overdue_ms IS NULL
  AND message_uuid IN (SELECT value FROM json_each(?3))

-- name: expire
UPDATE a2a_messages SET state = 'expired', ended_ms = NOW_MS, claim_until_ms = NULL, not_before_ms = NULL
WHERE id IN (
    SELECT id FROM a2a_messages
    WHERE scope_id = ?1 AND repository_id = ?2 AND ended_ms IS NULL AND expires_ms IS NOT NULL
      AND expires_ms <= NOW_MS AND coalesce(claim_until_ms, 0) <= NOW_MS LIMIT ?3)

-- name: forget_receivers
-- ?3: how long ago they were last seen, ?4: how many at once.
DELETE FROM a2a_receivers WHERE (scope_id, repository_id, receiver_agent, node_id) IN (
    SELECT scope_id, repository_id, receiver_agent, node_id FROM a2a_receivers
    WHERE scope_id = ?1 AND repository_id = ?2 AND seen_ms <= NOW_MS - ?3 LIMIT ?4)

-- name: changed
SELECT changes()

-- name: has_maintenance
-- Whether maintenance has anything to do. ?3: the time, ?4: last seen before which receivers are pruned.
SELECT
    EXISTS (SELECT 1 FROM a2a_messages
        WHERE scope_id = ?1 AND repository_id = ?2 AND ended_ms IS NULL AND expires_ms IS NOT NULL
          AND expires_ms <= ?3) AS expired,
    EXISTS (SELECT 1 FROM a2a_messages
        WHERE scope_id = ?1 AND repository_id = ?2 AND acknowledged = 0 AND ack_by_ms IS NOT NULL
          AND ack_by_ms <= ?3 AND overdue_ms IS NULL) AS overdue,
    EXISTS (SELECT 1 FROM a2a_receivers
        WHERE scope_id = ?1 AND repository_id = ?2 AND seen_ms <= ?4) AS forsaken

-- name: count_open
-- At most ?3 messages that have not ended are counted.
SELECT count(*) FROM (
    SELECT 1 FROM a2a_messages INDEXED BY a2a_messages_open
    WHERE scope_id = ?1 AND repository_id = ?2 AND ended_ms IS NULL LIMIT ?3)
