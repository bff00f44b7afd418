-- Tokens of agents that are in force, by their hashes. The signed ops in the log say who issued them.
CREATE TABLE IF NOT EXISTS agent_tokens (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    token_id      TEXT    NOT NULL,      -- the op that issued it
    agent_id      TEXT    NOT NULL,
    digest        TEXT    NOT NULL,
    until_ms      INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, token_id)
) WITHOUT ROWID;
