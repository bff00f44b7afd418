-- Where each node's service is, signed by the node. Relays use no other address. Older nodes write no row: they are not
-- relayed to, and find their messages in the database.
CREATE TABLE IF NOT EXISTS node_addresses (
    scope_id      TEXT NOT NULL,
    repository_id TEXT NOT NULL,
    node_id       TEXT NOT NULL,
    control_addr  TEXT NOT NULL,
    token_id      TEXT NOT NULL,
    machine_id    TEXT NOT NULL,
    signature     TEXT NOT NULL,
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;
