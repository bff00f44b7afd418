-- Tempo control: its decisions are in the log.

-- from oplog: ENTRY

-- name: decisions
-- The last ?3 accepted ones, newest first.
SELECT ENTRY FROM agent_oplog INDEXED BY agent_oplog_of_tempo
WHERE scope_id = ?1 AND repository_id = ?2 AND kind = 'TempoDecision' AND accepted = 1
ORDER BY id DESC LIMIT ?3
