-- Agents that act by grants only, and the grants that are in force: one that is revoked is deleted, with all that was
-- delegated from it. The signed ops in the log say what each allows. Older nodes do not check them.
CREATE TABLE IF NOT EXISTS admitted_agents (
    scope_id      TEXT NOT NULL,
    repository_id TEXT NOT NULL,
    agent_id      TEXT NOT NULL,         -- `*`: the mesh is strict, and all agents act by grants only
    public_key    TEXT,
    op_id         TEXT NOT NULL,
    PRIMARY KEY (scope_id, repository_id, agent_id)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS grants (
    scope_id      TEXT NOT NULL,
    repository_id TEXT NOT NULL,
    grant_id      TEXT NOT NULL,
    agent_id      TEXT NOT NULL,
    parent_id     TEXT,                  -- the grant it was delegated from
    from_ms       INTEGER NOT NULL,
    until_ms      INTEGER,
    PRIMARY KEY (scope_id, repository_id, grant_id)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS grants_of_parent ON grants (scope_id, repository_id, parent_id);

CREATE INDEX IF NOT EXISTS grants_by_end ON grants (scope_id, repository_id, until_ms) WHERE until_ms IS NOT NULL;

-- The ops about grants, in order.
CREATE INDEX IF NOT EXISTS agent_oplog_of_grants ON agent_oplog (scope_id, repository_id, id)
WHERE kind IN ('AdmitAgent', 'Grant', 'Delegate', 'Revoke', 'SetStrict');
