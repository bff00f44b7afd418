-- The ops about archived segments of the log, in order. Older nodes read none of them.
CREATE INDEX IF NOT EXISTS agent_oplog_of_segments ON agent_oplog (scope_id, repository_id, id)
WHERE kind = 'ArchiveSegment';
