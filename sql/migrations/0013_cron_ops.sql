-- The ops about crons, in order: a cron is fired only as they have it.
CREATE INDEX IF NOT EXISTS agent_oplog_of_crons ON agent_oplog (scope_id, repository_id, hlc)
WHERE kind IN ('AddCron', 'RemoveCron', 'AdoptCrons');
