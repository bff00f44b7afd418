-- The ops by which the ownership passed on, in order.
CREATE INDEX IF NOT EXISTS agent_oplog_of_succession ON agent_oplog (scope_id, repository_id, hlc)
WHERE kind = 'TransferOwnership';
