-- The correction of the database's clock, and the testimony of each node on that clock. Nodes of the previous
-- version know neither: they use the database's clock directly, which is the same while the correction is 0, and
-- no correction is made while one of them is alive.

CREATE TABLE IF NOT EXISTS database_clock (
    id            INTEGER PRIMARY KEY CHECK (id = 1),
    correction_ms INTEGER NOT NULL DEFAULT 0,
    modifier      TEXT    NOT NULL DEFAULT '+0.000 seconds',
    epoch         INTEGER NOT NULL DEFAULT 0,
    step_ms       INTEGER,
    stepped_ms    INTEGER,
    slewed_ms     INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE IF NOT EXISTS clock_witnesses (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,
    incarnation   INTEGER NOT NULL,
    epoch         INTEGER NOT NULL,
    low_ms        INTEGER,
    high_ms       INTEGER,
    seen_ms       INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;
