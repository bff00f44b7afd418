-- The receivers of each inbox, and the lease that its only receiver may have. Relayed messages are handed out
-- without a claim only under this lease. Older nodes neither write nor read the table: while one of them is alive,
-- no lease is granted.
CREATE TABLE IF NOT EXISTS a2a_receivers (
    scope_id       TEXT    NOT NULL,
    repository_id  TEXT    NOT NULL,
    receiver_agent TEXT    NOT NULL,
    node_id        TEXT    NOT NULL,
    seen_ms        INTEGER NOT NULL,
    lease_until_ms INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (scope_id, repository_id, receiver_agent, node_id)
) WITHOUT ROWID;
