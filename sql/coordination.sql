-- All tables of the mesh. Every statement may run from many nodes at once and any number of times.
--
-- Scope (tenant) and repository are part of every key, so that several meshes can share a database.
-- Times are by the database's clock; in all these files `NOW_MS` stands for it, in milliseconds.

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

-- Who is here: one row per node, written with every tick and at a clean end. `last_seen_ms` says that the
-- process ticks, `consuming_ms` that it still takes work, `progressing_ms` that its work moves.
CREATE TABLE IF NOT EXISTS mesh_heartbeats (
    scope_id          TEXT    NOT NULL,
    repository_id     TEXT    NOT NULL,
    node_id           TEXT    NOT NULL,
    agent_id          TEXT,
    incarnation       INTEGER NOT NULL,
    beats             INTEGER NOT NULL,  -- rises whenever this row is written
    last_seen_ms      INTEGER NOT NULL,
    consuming_ms      INTEGER,
    progressing_ms    INTEGER,
    left_ms           INTEGER,           -- NULL: it has not said that it ended
    started_ms        INTEGER NOT NULL,
    tick_ms           INTEGER NOT NULL,  -- how often it means to write this row
    activity          TEXT    NOT NULL,
    host              TEXT    NOT NULL,
    pid               INTEGER NOT NULL,
    version           TEXT    NOT NULL,
    control_addr      TEXT,
    public_key        TEXT    NOT NULL,
    kinds             TEXT    NOT NULL,  -- JSON array: the kinds of job it works on
    capacity          INTEGER NOT NULL,
    load              INTEGER NOT NULL,
    clock_distance_ms INTEGER NOT NULL,  -- its own clock minus the database's
    machine_id        TEXT    NOT NULL,
    place             TEXT    NOT NULL,  -- the slot: one live process at a time, by a lock of the OS
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;

-- The public key of each chain, from the entry on at which it came into force.
CREATE TABLE IF NOT EXISTS node_keys (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,
    from_seq      INTEGER NOT NULL,
    public_key    TEXT    NOT NULL,
    PRIMARY KEY (scope_id, repository_id, node_id, from_seq)
) WITHOUT ROWID;

-- Nodes that came with another key than the one that is known: the owner may accept it.
CREATE TABLE IF NOT EXISTS node_key_requests (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,
    public_key    TEXT    NOT NULL,
    host          TEXT    NOT NULL,
    pid           INTEGER NOT NULL,
    requested_ms  INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;

-- The owner of the mesh: the node that initialised it.
CREATE TABLE IF NOT EXISTS mesh_owner (
    scope_id      TEXT NOT NULL,
    repository_id TEXT NOT NULL,
    node_id       TEXT NOT NULL,
    public_key    TEXT NOT NULL,
    op_id         TEXT NOT NULL,
    PRIMARY KEY (scope_id, repository_id)
) WITHOUT ROWID;

-- The log: one chain per node, in which each entry holds the hash of the one before. `id` is the order
-- of commits, over all chains. What became of an op is not in its hash; seals vouch for it.
CREATE TABLE IF NOT EXISTS agent_oplog (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,
    seq           INTEGER NOT NULL,
    op_id         TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    hlc           TEXT    NOT NULL,
    causal_deps   TEXT    NOT NULL,      -- JSON array of op ids
    payload       TEXT    NOT NULL,      -- canonical JSON
    prev          TEXT    NOT NULL,
    hash          TEXT    NOT NULL,
    signature     TEXT,
    accepted      INTEGER NOT NULL,
    reason        TEXT,
    result        TEXT,
    UNIQUE (scope_id, repository_id, node_id, seq),
    UNIQUE (scope_id, repository_id, op_id),
    UNIQUE (scope_id, repository_id, hlc)
);

-- What the owner has said, in which order.
CREATE INDEX IF NOT EXISTS agent_oplog_of_owner ON agent_oplog (scope_id, repository_id, kind, hlc)
WHERE kind IN ('DesignateCoordinator', 'RouteKind', 'RekeyNode', 'Anchor');

-- Ops in the log that wait for others to be applied first. A row goes when its op is applied.
CREATE TABLE IF NOT EXISTS deferred_ops (
    scope_id      TEXT NOT NULL,
    repository_id TEXT NOT NULL,
    op_id         TEXT NOT NULL,
    causal_deps   TEXT NOT NULL,         -- as in the log, which has the op only at the end of the request
    dropped       TEXT,                  -- why it can never be applied; NULL: it waits
    PRIMARY KEY (scope_id, repository_id, op_id)
) WITHOUT ROWID;
