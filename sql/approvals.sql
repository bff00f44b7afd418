-- Approvals: what agents have asked for, and what became of it.
--
-- The rows follow the signed ops of the log, in the same transactions. They only say which ops to look at: what is
-- applied is what these ops say.

-- from oplog: ENTRY

-- part: OF_MESH
scope_id = ?1 AND repository_id = ?2

-- part: IS_OPEN
state IN ('pending', 'approved') AND expires_ms > NOW_MS

-- part: APPROVAL
approval_id, CASE WHEN state IN ('pending', 'approved') AND expires_ms <= NOW_MS THEN 'expired' ELSE state END AS state,
decision_op

-- name: refuse_if_many
-- The agent ?3 may have ?4 open ones, and all agents ?5 together.
INSERT INTO refusals (reason) SELECT 'refused' FROM (
    SELECT count(*) AS total, coalesce(sum(agent_id = ?3), 0) AS own FROM approvals INDEXED BY approvals_by_expiry
    WHERE OF_MESH AND IS_OPEN) WHERE own >= ?4 OR total >= ?5

-- name: ask
INSERT INTO approvals (scope_id, repository_id, approval_id, agent_id, digest, expires_ms, state)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'pending')

-- name: prune
-- The ones that expired ?3 ms ago, at most ?4 of them. The log keeps them.
DELETE FROM approvals WHERE OF_MESH AND approval_id IN (
    SELECT approval_id FROM approvals INDEXED BY approvals_by_expiry
    WHERE OF_MESH AND expires_ms < NOW_MS - ?3 LIMIT ?4)

-- name: pending_of
-- The open one of the agent ?3 for what has the digest ?4.
SELECT approval_id FROM approvals INDEXED BY approvals_by_expiry
WHERE OF_MESH AND IS_OPEN AND state = 'pending' AND agent_id = ?3 AND digest = ?4 LIMIT 1

-- name: refuse_unless_pending
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM approvals WHERE OF_MESH AND approval_id = ?3 AND state = 'pending' AND expires_ms > NOW_MS)

-- name: decide
-- The op ?4 makes it ?5: approved or denied.
UPDATE approvals SET state = ?5, decision_op = ?4, decided_ms = NOW_MS WHERE OF_MESH AND approval_id = ?3

-- name: refuse_unless_approved
-- By the op ?4, and not applied yet.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM approvals
    WHERE OF_MESH AND approval_id = ?3 AND decision_op = ?4 AND state = 'approved' AND expires_ms > NOW_MS)

-- name: end
-- What was approved is applied, or was refused: ?4.
UPDATE approvals SET state = ?4 WHERE OF_MESH AND approval_id = ?3 AND state = 'approved'

-- name: of_id
SELECT APPROVAL FROM approvals WHERE OF_MESH AND approval_id = ?3

-- name: open
-- The oldest first, up to ?3, after the one with the id ?4.
SELECT APPROVAL FROM approvals
WHERE OF_MESH AND IS_OPEN AND (?4 IS NULL OR approval_id > ?4) ORDER BY approval_id LIMIT ?3

-- name: newest
-- The newest first, up to ?3, before the one with the id ?4.
SELECT APPROVAL FROM approvals WHERE OF_MESH AND (?4 IS NULL OR approval_id < ?4) ORDER BY approval_id DESC LIMIT ?3

-- name: due
-- The ones that were approved ?3 ms ago and are not applied at the time ?5, up to ?4: the process that approved them
-- is gone. Given the time, a replica can answer.
SELECT approval_id FROM approvals INDEXED BY approvals_by_expiry
WHERE OF_MESH AND state = 'approved' AND expires_ms > ?5 AND decided_ms <= ?5 - ?3 LIMIT ?4

-- name: ops
-- The ops about approvals after the entry ?3, in the order of their commits.
SELECT ENTRY FROM agent_oplog INDEXED BY agent_oplog_of_approvals
WHERE OF_MESH AND kind IN ('RequestApproval', 'Approve', 'Deny') AND id > ?3
ORDER BY id LIMIT ?4
