-- When each agent was last seen, and where. Older nodes write no row: their agents are known by their locks, inboxes
-- and heartbeats only.
CREATE TABLE IF NOT EXISTS agent_presence (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    agent_id      TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,
    is_attached   INTEGER NOT NULL,
    action        TEXT    NOT NULL,
    first_seen_ms INTEGER NOT NULL,
    seen_ms       INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, agent_id)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS agent_presence_seen ON agent_presence (scope_id, repository_id, seen_ms);
