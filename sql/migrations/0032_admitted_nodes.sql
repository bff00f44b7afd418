-- Nodes that the owner has admitted: in a strict mesh, only these join. Older nodes do not check it.
CREATE TABLE IF NOT EXISTS admitted_nodes (
    scope_id      TEXT NOT NULL,
    repository_id TEXT NOT NULL,
    node_id       TEXT NOT NULL,
    public_key    TEXT NOT NULL,         -- the key in force
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;

-- The ops that decide which keys of nodes count, in order.
CREATE INDEX IF NOT EXISTS agent_oplog_of_keys ON agent_oplog (scope_id, repository_id, hlc)
WHERE kind IN ('RekeyNode', 'AdmitNode', 'SetStrict', 'TransferOwnership');
