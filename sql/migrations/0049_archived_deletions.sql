-- The owner's ops by which archived entries of the log may be deleted, in order. Older nodes delete none, and would take
-- deleted entries for lost ones: nothing is deleted while one of them is alive.
CREATE INDEX IF NOT EXISTS agent_oplog_of_deletions ON agent_oplog (scope_id, repository_id, id)
WHERE kind = 'DeleteArchived';
