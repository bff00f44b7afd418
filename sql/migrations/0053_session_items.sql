-- The items of the sessions of agents: messages and calls of tools, in order. A session is a conversation.
CREATE TABLE IF NOT EXISTS session_items (
    id            INTEGER PRIMARY KEY,
    scope_id      TEXT NOT NULL,
    repository_id TEXT NOT NULL,
    session_id    TEXT NOT NULL,
    item          TEXT NOT NULL,  -- JSON
    UNIQUE (scope_id, repository_id, session_id, id)
);
