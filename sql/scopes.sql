-- Messages between scopes: they wait in the database of the sender, and arrive once in that of the recipient.

-- name: outbound
-- The inboxes of the scope ?3 that messages wait for; ?4: how many. As bytes: a row may hold text that is not UTF-8.
SELECT DISTINCT CAST(receiver_agent AS BLOB) FROM a2a_messages INDEXED BY a2a_messages_outbound
WHERE scope_id = ?1 AND repository_id = ?2 AND ended_ms IS NULL AND instr(receiver_agent, '@') > 0
  AND substr(receiver_agent, -length(?3) - 1) = '@' || ?3
LIMIT ?4

-- name: outbound_elsewhere
-- The same of all scopes but those in ?3.
SELECT DISTINCT CAST(receiver_agent AS BLOB) FROM a2a_messages INDEXED BY a2a_messages_outbound
WHERE scope_id = ?1 AND repository_id = ?2 AND ended_ms IS NULL AND instr(receiver_agent, '@') > 0
  AND NOT EXISTS (
    SELECT 1 FROM json_each(?3) WHERE substr(receiver_agent, -length(value) - 1) = '@' || value)
LIMIT ?4

-- name: count_outbound
-- How many messages wait for the scope ?3, or for any scope if it is NULL; at most ?4.
SELECT count(*) FROM (
    SELECT 1 FROM a2a_messages INDEXED BY a2a_messages_outbound
    WHERE scope_id = ?1 AND repository_id = ?2 AND ended_ms IS NULL AND instr(receiver_agent, '@') > 0
      AND (?3 IS NULL OR substr(receiver_agent, -length(?3) - 1) = '@' || ?3)
    LIMIT ?4)

-- name: refuse_unless_last_trust
-- The op ?3 was the last about trusted scopes when they were read; NULL: there was none.
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?3 IS NOT (
    SELECT op_id FROM agent_oplog INDEXED BY agent_oplog_of_scopes
    WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'TrustScope' AND accepted = 1 ORDER BY hlc DESC LIMIT 1
)

-- name: refuse_if_arrived
-- The message ?4 of the scope ?3 has arrived before, whatever became of it.
INSERT INTO refusals (reason) SELECT 'refused' WHERE EXISTS (
    SELECT 1 FROM scope_arrivals
    WHERE scope_id = ?1 AND repository_id = ?2 AND origin = ?3 AND message_uuid = ?4)

-- name: refuse_unless_arrived
-- The message ?4 of the scope ?3, which was sent before, has arrived.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM scope_arrivals
    WHERE scope_id = ?1 AND repository_id = ?2 AND origin = ?3 AND message_uuid = ?4)

-- name: refuse_if_full
-- The inbox ?3 has at least ?4 messages that have not ended.
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?4 <= (
    SELECT count(*) FROM (
        SELECT 1 FROM a2a_messages
        WHERE scope_id = ?1 AND repository_id = ?2 AND receiver_agent = ?3 AND ended_ms IS NULL LIMIT ?4))

-- name: record_arrival
INSERT INTO scope_arrivals (scope_id, repository_id, origin, message_uuid, arrived_ms) VALUES (?1, ?2, ?3, ?4, NOW_MS)

-- name: has_old_arrivals
-- Whether a message arrived more than ?4 milliseconds before ?3, the time as the caller knows it.
SELECT EXISTS (
    SELECT 1 FROM scope_arrivals WHERE scope_id = ?1 AND repository_id = ?2 AND arrived_ms < ?3 - ?4)

-- name: forget_arrivals
-- ?3: after how many milliseconds, ?4: how many at a time.
DELETE FROM scope_arrivals
WHERE scope_id = ?1 AND repository_id = ?2 AND (origin, message_uuid) IN (
    SELECT origin, message_uuid FROM scope_arrivals
    WHERE scope_id = ?1 AND repository_id = ?2 AND arrived_ms < NOW_MS - ?3 LIMIT ?4)
