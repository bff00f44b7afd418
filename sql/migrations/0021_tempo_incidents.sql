-- The incident that freezes the tempo, if one is declared. Older nodes do not know it, and adapt nevertheless.
CREATE TABLE IF NOT EXISTS tempo_incidents (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    reason        TEXT    NOT NULL,
    declared_ms   INTEGER NOT NULL,
    node_id       TEXT    NOT NULL,  -- the node or command that declared it
    agent_id      TEXT,
    op_id         TEXT    NOT NULL,
    PRIMARY KEY (scope_id, repository_id)
) WITHOUT ROWID;
