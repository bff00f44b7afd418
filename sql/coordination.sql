-- All tables of the mesh. Every statement may run from many nodes at once and any number of times.
--
-- Scope (tenant) and repository are part of every key, so that several meshes can share a database.
-- Times are by the database's clock.

-- Which versions of this file were applied. `oldest_code` is the oldest code that can still work with
-- the database as that version left it.
CREATE TABLE IF NOT EXISTS mesh_schema (
    version     INTEGER PRIMARY KEY,
    oldest_code INTEGER NOT NULL,
    applied_at  TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);

-- One row per script that was applied or has failed, written in the script's own transaction: what
-- makes a script that is sent twice take effect once. A row goes once its key can't be sent again.
CREATE TABLE IF NOT EXISTS script_results (
    scope_id         TEXT NOT NULL,
    repository_id    TEXT NOT NULL,
    script_key       TEXT NOT NULL,
    writer           TEXT NOT NULL,
    failed_statement INTEGER,          -- NULL: applied
    since_s          INTEGER NOT NULL DEFAULT (CAST(strftime('%s', 'now') AS INTEGER)),
    PRIMARY KEY (scope_id, repository_id, script_key)
) WITHOUT ROWID;

-- The rows a script answered with, so that it answers the same when it is sent again. The columns
-- have no affinity: values come back exactly as they went in.
CREATE TABLE IF NOT EXISTS script_answers (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    script_key    TEXT    NOT NULL,
    n             INTEGER NOT NULL,
    c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11,
    PRIMARY KEY (scope_id, repository_id, script_key, n)
) WITHOUT ROWID;

-- A table that accepts nothing: a guard inserts here when its condition does not hold, and so fails.
CREATE TABLE IF NOT EXISTS refusals (
    reason TEXT CONSTRAINT guard CHECK (0)
);

-- The fence counter of each lock key. It only ever rises: through release, expiry, sweep and restart.
CREATE TABLE IF NOT EXISTS lock_fences (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    lock_key      TEXT    NOT NULL,
    fence_token   INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, lock_key)
) WITHOUT ROWID;

-- The incarnation of each node: it rises with every start, and a write from an older one is refused.
CREATE TABLE IF NOT EXISTS node_incarnations (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,
    incarnation   INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;
