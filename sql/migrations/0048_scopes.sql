-- Messages between scopes, and which scopes may send. Older nodes forward none.
CREATE TABLE IF NOT EXISTS scope_arrivals (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    origin        TEXT    NOT NULL,  -- the scope of the sender
    message_uuid  TEXT    NOT NULL,
    arrived_ms    INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, origin, message_uuid)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS scope_arrivals_by_age ON scope_arrivals (scope_id, repository_id, arrived_ms);

-- Messages to other scopes, which wait to be forwarded.
CREATE INDEX IF NOT EXISTS a2a_messages_outbound ON a2a_messages (scope_id, repository_id, receiver_agent)
WHERE ended_ms IS NULL AND instr(receiver_agent, '@') > 0;

-- The ops about scopes that may send, in order.
CREATE INDEX IF NOT EXISTS agent_oplog_of_scopes ON agent_oplog (scope_id, repository_id, hlc)
WHERE kind = 'TrustScope';
