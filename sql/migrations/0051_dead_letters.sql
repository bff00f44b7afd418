-- Of the messages that have ended, only dead letters are looked for: others need no entry in an index, and their
-- acknowledgement writes one page less. The name stays, so that statements of earlier versions find the index.
DROP INDEX IF EXISTS a2a_messages_ended;
CREATE INDEX IF NOT EXISTS a2a_messages_ended ON a2a_messages (scope_id, repository_id, state, ended_ms)
WHERE ended_ms IS NOT NULL AND state = 'dead';
