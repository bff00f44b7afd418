-- Who acted, and by which grant. Entries name them once every live node knows these columns.
-- if-missing: agent_oplog.agent
ALTER TABLE agent_oplog ADD COLUMN agent TEXT;

-- if-missing: agent_oplog.grant
ALTER TABLE agent_oplog ADD COLUMN grant TEXT;
