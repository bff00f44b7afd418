-- All tables of the mesh, at the newest version. An empty database is created from this file alone. The files in
-- `migrations/` bring an existing database to the same shape, so a change here needs a migration; a test compares
-- the two. Every statement may run from many nodes at once and any number of times.
--
-- Scope and repository are part of every key, so that several meshes can share a database; they separate names, not
-- tenants. Times are
-- those of the mesh: the database's clock plus a correction (see `database_clock`). In all these files `NOW_MS`
-- stands for it, in milliseconds.

-- The version this database was created with, and every migration applied to it since. `oldest_code` is the
-- oldest code that can still work with the database as that version left it.
CREATE TABLE IF NOT EXISTS mesh_schema (
    version     INTEGER PRIMARY KEY,
    oldest_code INTEGER NOT NULL,
    applied_at  TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);

-- Idempotency keys: one row per script that was applied or has failed, written in the script's own transaction, so
-- that a script sent twice takes effect once. A row is pruned when its key can't be sent again.
CREATE TABLE IF NOT EXISTS script_results (
    scope_id         TEXT NOT NULL,
    repository_id    TEXT NOT NULL,
    script_key       TEXT NOT NULL,
    writer           TEXT NOT NULL,
    failed_statement INTEGER,          -- NULL: applied
    since_s          INTEGER NOT NULL DEFAULT (CAST(strftime('%s', 'now') AS INTEGER)),
    PRIMARY KEY (scope_id, repository_id, script_key)
) WITHOUT ROWID;

-- The answer of each script, so that it answers the same when it is sent again. The columns have no affinity:
-- values come back exactly as they went in.
CREATE TABLE IF NOT EXISTS script_answers (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    script_key    TEXT    NOT NULL,
    n             INTEGER NOT NULL,
    c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11,
    PRIMARY KEY (scope_id, repository_id, script_key, n)
) WITHOUT ROWID;

-- The correction that the nodes add to the database's clock, so that the time of the mesh continues without a step
-- when that clock is set. One row for the whole database, or none while that never happened. `epoch` rises with
-- every step that the nodes confirmed.
CREATE TABLE IF NOT EXISTS database_clock (
    id            INTEGER PRIMARY KEY CHECK (id = 1),
    correction_ms INTEGER NOT NULL DEFAULT 0,
    modifier      TEXT    NOT NULL DEFAULT '+0.000 seconds',  -- the correction, as date functions take it
    epoch         INTEGER NOT NULL DEFAULT 0,
    step_ms       INTEGER,                     -- the last step of the database's clock; NULL: none
    stepped_ms    INTEGER,                     -- when it was confirmed
    slewed_ms     INTEGER NOT NULL DEFAULT 0   -- when the correction was last reduced
);

-- The testimony of each node on the database's clock: it is between `low_ms` and `high_ms` from the time that the
-- node's own clock counted on to. NULL: withdrawn. At most one row per node, as in `mesh_heartbeats`.
CREATE TABLE IF NOT EXISTS clock_witnesses (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,
    incarnation   INTEGER NOT NULL,
    epoch         INTEGER NOT NULL,
    low_ms        INTEGER,
    high_ms       INTEGER,
    seen_ms       INTEGER NOT NULL,  -- when, by the node's own count
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;

-- A table that accepts nothing: a guard whose condition does not hold inserts here, and so fails.
CREATE TABLE IF NOT EXISTS refusals (
    reason TEXT CONSTRAINT guard CHECK (0)
);

-- The lock generation of each repository: the source of pattern numbers, and the lower bound of new fencing
-- tokens. It only rises.
CREATE TABLE IF NOT EXISTS lock_generations (
    scope_id       TEXT    NOT NULL,
    repository_id  TEXT    NOT NULL,
    generation     INTEGER NOT NULL,
    newest_pattern INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (scope_id, repository_id)
) WITHOUT ROWID;

-- Exclusive locks, one row per key; a lock of several keys has one token and one request for all of them. An
-- expired one has no effect; the next holder or a sweep removes it. While a key is shared or waited for, it has a
-- row, held or not, which closes the fast path.
CREATE TABLE IF NOT EXISTS distributed_locks (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    lock_key      TEXT    NOT NULL,
    holder_node   TEXT    NOT NULL,
    holder_agent  TEXT    NOT NULL,
    fence_token   INTEGER NOT NULL,
    request_id    TEXT    NOT NULL,            -- empty: not held
    acquired_at   TEXT    NOT NULL,
    expires_at    TEXT    NOT NULL,
    is_contended  INTEGER NOT NULL DEFAULT 0,  -- shared or waited for: slow path only
    PRIMARY KEY (scope_id, repository_id, lock_key)
) WITHOUT ROWID;

-- No new token lies below the generation, so the tokens of a key rise through release, expiry, sweep and restart.
CREATE TRIGGER IF NOT EXISTS lock_tokens_never_fall AFTER DELETE ON distributed_locks
BEGIN
    UPDATE lock_generations SET generation = max(generation, OLD.fence_token)
    WHERE scope_id = OLD.scope_id AND repository_id = OLD.repository_id;
END;

-- Shared locks: any number per key, none while the key is held exclusively.
CREATE TABLE IF NOT EXISTS lock_shares (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    lock_key      TEXT    NOT NULL,
    holder_node   TEXT    NOT NULL,
    holder_agent  TEXT    NOT NULL,
    fence_token   INTEGER NOT NULL,
    request_id    TEXT    NOT NULL,
    acquired_at   TEXT    NOT NULL,
    expires_at    TEXT    NOT NULL,
    PRIMARY KEY (scope_id, repository_id, lock_key, request_id)
) WITHOUT ROWID;

-- The queue of waiters of each key, in the order of their tickets. A waiter confirms its place regularly; after
-- `alive_until` it is skipped.
CREATE TABLE IF NOT EXISTS lock_waiters (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    lock_key      TEXT    NOT NULL,
    ticket        INTEGER NOT NULL,
    request_id    TEXT    NOT NULL,
    is_shared     INTEGER NOT NULL,
    holder_node   TEXT    NOT NULL,
    holder_agent  TEXT    NOT NULL,
    waits_since   TEXT    NOT NULL,
    alive_until   TEXT    NOT NULL,
    PRIMARY KEY (scope_id, repository_id, request_id, lock_key)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS lock_waiters_in_order ON lock_waiters (scope_id, repository_id, lock_key, ticket);

-- The patterns among the keys in use. A request for a key names the newest pattern it was compared with.
CREATE TABLE IF NOT EXISTS lock_patterns (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    number        INTEGER NOT NULL,
    lock_key      TEXT    NOT NULL,
    is_compared   INTEGER NOT NULL DEFAULT 0,  -- with the keys that were in use before it
    PRIMARY KEY (scope_id, repository_id, number),
    UNIQUE (scope_id, repository_id, lock_key)
) WITHOUT ROWID;

-- The overlaps of keys in use, in both directions: SQL can't compute them for patterns.
CREATE TABLE IF NOT EXISTS lock_overlaps (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    lock_key      TEXT    NOT NULL,
    other_key     TEXT    NOT NULL,
    PRIMARY KEY (scope_id, repository_id, lock_key, other_key)
) WITHOUT ROWID;

-- The processes that session locks last for: a node of their host renews a lock while one of them runs.
CREATE TABLE IF NOT EXISTS lock_sessions (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    request_id    TEXT    NOT NULL,  -- of the lock; empty: a node that renews the locks of its host
    host          TEXT    NOT NULL,
    pid           INTEGER NOT NULL,
    started       INTEGER NOT NULL,
    ttl_ms        INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, request_id, host, pid, started)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS lock_sessions_of_host ON lock_sessions (scope_id, repository_id, host);

-- All locks, including expired ones.
CREATE VIEW IF NOT EXISTS lock_holds AS
SELECT scope_id, repository_id, lock_key, holder_node, holder_agent, fence_token, request_id, acquired_at,
    expires_at, 0 AS is_shared
FROM distributed_locks
UNION ALL
SELECT scope_id, repository_id, lock_key, holder_node, holder_agent, fence_token, request_id, acquired_at,
    expires_at, 1
FROM lock_shares;

-- What blocks each waiter, and until when: holders and earlier waiters of the same key, or of an overlapping one,
-- unless both are shared. This view defines what a conflict is; statements on one plain key restate it for that case.
CREATE VIEW IF NOT EXISTS lock_blockers AS
SELECT w.scope_id, w.repository_id, w.request_id, h.expires_at AS blocks_until
FROM lock_waiters AS w
JOIN distributed_locks AS h
    ON h.scope_id = w.scope_id AND h.repository_id = w.repository_id AND h.lock_key IN (
        SELECT w.lock_key UNION ALL
        SELECT other_key FROM lock_overlaps AS o
        WHERE o.scope_id = w.scope_id AND o.repository_id = w.repository_id AND o.lock_key = w.lock_key)
WHERE h.request_id <> w.request_id
UNION ALL
SELECT w.scope_id, w.repository_id, w.request_id, s.expires_at
FROM lock_waiters AS w
JOIN lock_shares AS s
    ON s.scope_id = w.scope_id AND s.repository_id = w.repository_id AND s.lock_key IN (
        SELECT w.lock_key UNION ALL
        SELECT other_key FROM lock_overlaps AS o
        WHERE o.scope_id = w.scope_id AND o.repository_id = w.repository_id AND o.lock_key = w.lock_key)
WHERE s.request_id <> w.request_id AND NOT w.is_shared
UNION ALL
SELECT w.scope_id, w.repository_id, w.request_id, e.alive_until
FROM lock_waiters AS w
JOIN lock_waiters AS e
    ON e.scope_id = w.scope_id AND e.repository_id = w.repository_id AND e.lock_key IN (
        SELECT w.lock_key UNION ALL
        SELECT other_key FROM lock_overlaps AS o
        WHERE o.scope_id = w.scope_id AND o.repository_id = w.repository_id AND o.lock_key = w.lock_key)
WHERE (e.ticket, e.request_id) < (w.ticket, w.request_id) AND NOT (e.is_shared AND w.is_shared);

-- The incarnation of each node: it rises with every start, and writes from a superseded one are rejected. `beats`
-- rises with every heartbeat: if it is below the last acknowledged one, the database was rolled back.
CREATE TABLE IF NOT EXISTS node_incarnations (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,
    incarnation   INTEGER NOT NULL,
    beats         INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;

-- The epochs of the database: epoch 0 begins when the first node joins, another one whenever a rollback was
-- detected. Nodes identify an epoch by its `op_id`, since a number may repeat: the table is rolled back too. The
-- newest 1,000 are kept, and epoch 0.
CREATE TABLE IF NOT EXISTS store_epochs (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    epoch         INTEGER NOT NULL,
    op_id         TEXT    NOT NULL,  -- of `StoreRolledBack`; for epoch 0 and a restore, just an id
    node_id       TEXT    NOT NULL,  -- the node that detected it; empty for a restore
    detected_ms   INTEGER NOT NULL,
    detail        TEXT    NOT NULL,  -- the payload of the op: what was lost, as far as known
    PRIMARY KEY (scope_id, repository_id, epoch)
) WITHOUT ROWID;

-- Membership: one row per node, written with every heartbeat and at a graceful shutdown. `last_seen_ms`: the
-- process is alive; `consuming_ms`: it takes work; `progressing_ms`: its work advances.
CREATE TABLE IF NOT EXISTS mesh_heartbeats (
    scope_id          TEXT    NOT NULL,
    repository_id     TEXT    NOT NULL,
    node_id           TEXT    NOT NULL,
    agent_id          TEXT,
    incarnation       INTEGER NOT NULL,
    beats             INTEGER NOT NULL,  -- rises with every write of this row
    last_seen_ms      INTEGER NOT NULL,
    consuming_ms      INTEGER,
    progressing_ms    INTEGER,
    left_ms           INTEGER,           -- NULL: it has not left
    started_ms        INTEGER NOT NULL,
    tick_ms           INTEGER NOT NULL,  -- the interval of its heartbeats
    activity          TEXT    NOT NULL,
    host              TEXT    NOT NULL,
    pid               INTEGER NOT NULL,
    version           TEXT    NOT NULL,
    control_addr      TEXT,
    public_key        TEXT    NOT NULL,
    kinds             TEXT    NOT NULL,  -- JSON array: the kinds of job it handles
    capacity          INTEGER NOT NULL,
    load              INTEGER NOT NULL,
    clock_distance_ms INTEGER NOT NULL,  -- its own clock minus the database's
    machine_id        TEXT    NOT NULL,
    place             TEXT    NOT NULL,  -- the slot: one live process at a time, by a lock of the OS
    policy_roots TEXT,  -- JSON array: the policy roots of which it runs jobs; NULL: any
    spare_ms INTEGER NOT NULL DEFAULT 0,  -- how much longer than a tick its next heartbeat may take
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;

-- The health of each node, as reported with its last heartbeat.
CREATE TABLE IF NOT EXISTS node_vitals (
    scope_id       TEXT    NOT NULL,
    repository_id  TEXT    NOT NULL,
    node_id        TEXT    NOT NULL,
    written        INTEGER NOT NULL,  -- scripts applied since its start
    waiting        INTEGER NOT NULL,  -- writes queued
    replica_lag_ms INTEGER,           -- NULL: no replica
    faults         TEXT    NOT NULL,  -- JSON array: why it is not ready
    cpu_utilisation REAL,
    gpu_utilisation REAL,
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;

-- When each agent was last seen, and where: one row per agent, written in batches and not with every action. Rows are
-- pruned a month after that.
CREATE TABLE IF NOT EXISTS agent_presence (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    agent_id      TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,  -- the node, or the node for which a command acted
    is_attached   INTEGER NOT NULL,  -- it lives in the process of the node: it is gone when the node is
    action        TEXT    NOT NULL,  -- what it last did: lock, send, receive, or run
    first_seen_ms INTEGER NOT NULL,
    seen_ms       INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, agent_id)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS agent_presence_seen ON agent_presence (scope_id, repository_id, seen_ms);

-- Where each node's service is: scheme, host and port, signed by the node with the other columns. `control_addr` in
-- `mesh_heartbeats` is not signed, and only shown.
CREATE TABLE IF NOT EXISTS node_addresses (
    scope_id      TEXT NOT NULL,
    repository_id TEXT NOT NULL,
    node_id       TEXT NOT NULL,
    control_addr  TEXT NOT NULL,
    token_id      TEXT NOT NULL,  -- the same on nodes that share a token
    machine_id    TEXT NOT NULL,
    signature     TEXT NOT NULL,
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;

-- The schema version that each node's code knows, written at its start. A row counts only for its incarnation:
-- code that writes none knows version 7 or less. One row per node, as in `mesh_heartbeats`.
CREATE TABLE IF NOT EXISTS node_versions (
    scope_id       TEXT    NOT NULL,
    repository_id  TEXT    NOT NULL,
    node_id        TEXT    NOT NULL,
    incarnation    INTEGER NOT NULL,
    schema_version INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;

-- The public key of each chain, from the entry at which it took effect; 0: before the first entry.
CREATE TABLE IF NOT EXISTS node_keys (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,
    from_seq      INTEGER NOT NULL,
    public_key    TEXT    NOT NULL,
    PRIMARY KEY (scope_id, repository_id, node_id, from_seq)
) WITHOUT ROWID;

-- Nodes that presented another key than the known one: the owner may accept it.
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

-- The op log: one chain per node, in which each entry holds the hash of the previous one. `id` is the order of
-- commits, over all chains. The verdict on an op is not in its hash; seals cover it.
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
    agent         TEXT,                  -- who acted, and by which grant: in the hash of entries that name them
    grant         TEXT,
    UNIQUE (scope_id, repository_id, node_id, seq),
    UNIQUE (scope_id, repository_id, op_id),
    UNIQUE (scope_id, repository_id, hlc)
);

-- The ops of the owner, in order.
CREATE INDEX IF NOT EXISTS agent_oplog_of_owner ON agent_oplog (scope_id, repository_id, kind, hlc)
WHERE kind IN ('DesignateCoordinator', 'RouteKind', 'RekeyNode', 'Anchor');

-- The ops by which the ownership passed on, in order.
CREATE INDEX IF NOT EXISTS agent_oplog_of_succession ON agent_oplog (scope_id, repository_id, hlc)
WHERE kind = 'TransferOwnership';

-- The ops about crons, in order: a cron is fired only as they have it.
CREATE INDEX IF NOT EXISTS agent_oplog_of_crons ON agent_oplog (scope_id, repository_id, hlc)
WHERE kind IN ('AddCron', 'RemoveCron', 'AdoptCrons');

-- The ops about rules, in order: a rule is fired only as they have it.
CREATE INDEX IF NOT EXISTS agent_oplog_of_rules ON agent_oplog (scope_id, repository_id, hlc)
WHERE kind IN ('AddRule', 'RemoveRule');

-- The ops about grants, in order.
CREATE INDEX IF NOT EXISTS agent_oplog_of_grants ON agent_oplog (scope_id, repository_id, id)
WHERE kind IN ('AdmitAgent', 'Grant', 'Delegate', 'Revoke', 'SetStrict');

-- The ops that decide which keys of nodes count, in order.
CREATE INDEX IF NOT EXISTS agent_oplog_of_keys ON agent_oplog (scope_id, repository_id, hlc)
WHERE kind IN ('RekeyNode', 'AdmitNode', 'SetStrict', 'TransferOwnership');

-- The ops about archived segments of the log, in order.
CREATE INDEX IF NOT EXISTS agent_oplog_of_segments ON agent_oplog (scope_id, repository_id, id)
WHERE kind = 'ArchiveSegment';

-- The owner's ops by which archived entries of the log may be deleted, in order.
CREATE INDEX IF NOT EXISTS agent_oplog_of_deletions ON agent_oplog (scope_id, repository_id, id)
WHERE kind = 'DeleteArchived';

-- The ops about scopes that may send, in order.
CREATE INDEX IF NOT EXISTS agent_oplog_of_scopes ON agent_oplog (scope_id, repository_id, hlc)
WHERE kind = 'TrustScope';

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
    reserved_mbu  INTEGER NOT NULL DEFAULT 0,  -- of its budget: what jobs cost, or may cost, in thousandths of beats
    PRIMARY KEY (scope_id, repository_id, grant_id)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS grants_of_parent ON grants (scope_id, repository_id, parent_id);

CREATE INDEX IF NOT EXISTS grants_by_end ON grants (scope_id, repository_id, until_ms) WHERE until_ms IS NOT NULL;

-- What was done by grants with rates and limits on open items: a row for each use, as long as it counts. It is deleted
-- with its grant.
CREATE TABLE IF NOT EXISTS grant_usage (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    grant_id      TEXT    NOT NULL,
    capability    INTEGER NOT NULL,      -- its place in the grant, from 0
    kind          TEXT    NOT NULL,      -- of the item: job, take, lock, message, or act, which is never open
    item          TEXT    NOT NULL,
    used_ms       INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, grant_id, capability, kind, item)
) WITHOUT ROWID;

-- What jobs have reserved of the budgets of grants. A row is removed when it is settled, since its job has ended, and
-- with its grant.
CREATE TABLE IF NOT EXISTS grant_reservations (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    grant_id      TEXT    NOT NULL,
    reserved_mbu  INTEGER NOT NULL,      -- what the job may cost, in thousandths of beats
    PRIMARY KEY (scope_id, repository_id, job_id, grant_id)
) WITHOUT ROWID;

-- Nodes that the owner has admitted: in a strict mesh, only these join. Older nodes do not check it.
CREATE TABLE IF NOT EXISTS admitted_nodes (
    scope_id      TEXT NOT NULL,
    repository_id TEXT NOT NULL,
    node_id       TEXT NOT NULL,
    public_key    TEXT NOT NULL,         -- the key in force
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;

-- What agents have asked for, and what became of it. The signed ops in the log say what was asked, and who approved it.
CREATE TABLE IF NOT EXISTS approvals (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    approval_id   TEXT    NOT NULL,         -- the op that asks
    agent_id      TEXT    NOT NULL,
    digest        TEXT    NOT NULL,         -- of what is asked
    expires_ms    INTEGER NOT NULL,
    state         TEXT    NOT NULL,         -- pending, approved, denied, applied, refused
    decision_op   TEXT,                     -- the op that approved or denied it
    decided_ms    INTEGER,
    PRIMARY KEY (scope_id, repository_id, approval_id)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS approvals_by_expiry ON approvals (scope_id, repository_id, expires_ms);

-- The ops about approvals, in order.
CREATE INDEX IF NOT EXISTS agent_oplog_of_approvals ON agent_oplog (scope_id, repository_id, id)
WHERE kind IN ('RequestApproval', 'Approve', 'Deny');

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

-- Logged ops that wait for others to be applied first. A row is removed when its op is applied.
CREATE TABLE IF NOT EXISTS deferred_ops (
    scope_id      TEXT NOT NULL,
    repository_id TEXT NOT NULL,
    op_id         TEXT NOT NULL,
    causal_deps   TEXT NOT NULL,         -- as in the log, which has the op only at the end of the request
    dropped       TEXT,                  -- why it can never be applied; NULL: it waits
    PRIMARY KEY (scope_id, repository_id, op_id)
) WITHOUT ROWID;

-- Writes that lost a race and wait for a decision: what both had read (base), what the loser wanted (left) and
-- what was there (right), as canonical JSON. No base: the loser expected no row. No right: there was none.
CREATE TABLE IF NOT EXISTS occ_conflicts (
    scope_id       TEXT NOT NULL,
    repository_id  TEXT NOT NULL,
    conflict_id    TEXT NOT NULL,
    table_name     TEXT NOT NULL,
    row_key        TEXT NOT NULL,
    base           TEXT,
    "left"         TEXT NOT NULL,
    "right"        TEXT,
    left_node      TEXT NOT NULL,
    left_agent     TEXT,
    right_node     TEXT,
    strategy       TEXT NOT NULL,
    deferred_to    TEXT,
    state          TEXT NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'resolved')),
    created_at     TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    resolved_at    TEXT,
    resolved_by    TEXT,
    resolved_agent TEXT,
    resolution     TEXT,
    reason         TEXT,
    PRIMARY KEY (scope_id, repository_id, conflict_id),
    CHECK ((state = 'resolved') = (resolved_at IS NOT NULL AND resolution IS NOT NULL))
) WITHOUT ROWID;

-- Open conflicts, among all recorded ones.
CREATE INDEX IF NOT EXISTS occ_conflicts_open ON occ_conflicts (scope_id, repository_id, conflict_id)
WHERE state = 'open';

-- Messages between agents: one row for each id, whichever side wrote it first. The sender's columns (up to
-- `signature`) never change; the others hold the state. `id` is the order of commits: the newest row is never
-- removed.
CREATE TABLE IF NOT EXISTS a2a_messages (
    id                 INTEGER PRIMARY KEY,
    scope_id           TEXT    NOT NULL,
    repository_id      TEXT    NOT NULL,
    message_uuid       TEXT    NOT NULL,
    sender_agent       TEXT    NOT NULL,
    receiver_agent     TEXT    NOT NULL,  -- an agent, or `role:` and a role
    msg_type           TEXT    NOT NULL,
    payload            TEXT    NOT NULL,  -- canonical JSON
    priority           INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 3),
    thread_id          TEXT,
    correlation_id     TEXT,
    reply_to           TEXT,
    expires_ms         INTEGER,
    ack_by_ms          INTEGER,           -- the sender gets a notice if it is not acknowledged by then
    max_attempts       INTEGER NOT NULL,
    hlc                TEXT    NOT NULL,
    sender_node        TEXT    NOT NULL,
    sender_incarnation INTEGER,           -- NULL: sent by a command that uses the node's key
    traceparent        TEXT,
    signature          TEXT    NOT NULL,
    created_at         TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    state              TEXT    NOT NULL DEFAULT 'stored'
                       CHECK (state IN ('stored', 'delivered', 'acked', 'dead', 'expired')),
    acknowledged       INTEGER NOT NULL DEFAULT 0,
    claim_owner        TEXT,              -- the current claim, or the last one
    claim_until_ms     INTEGER,           -- NULL: not claimed
    delivery_attempts  INTEGER NOT NULL DEFAULT 0,
    not_before_ms      INTEGER,           -- it was rejected, and its pair waits for it until then
    ended_ms           INTEGER,           -- NULL while it can be delivered
    ended_reason       TEXT,              -- why it is a dead letter
    overdue_ms         INTEGER,           -- when its sender got the notice
    is_ordered         INTEGER NOT NULL DEFAULT 1,  -- 0: to a role, and handled in parallel with others of its sender
    agent_signature    TEXT,              -- by the key of the sender itself, if it has one
    UNIQUE (scope_id, repository_id, message_uuid),
    CHECK ((state = 'acked') = acknowledged),
    CHECK ((state IN ('stored', 'delivered')) = (ended_ms IS NULL))
);

-- Messages still to be delivered, by sender and in order. It stays small however many have ended.
CREATE INDEX IF NOT EXISTS a2a_messages_open
ON a2a_messages (scope_id, repository_id, receiver_agent, sender_agent, hlc) WHERE ended_ms IS NULL;

-- Rejected messages, which delay the later ones of their sender.
CREATE INDEX IF NOT EXISTS a2a_messages_held_back
ON a2a_messages (scope_id, repository_id, receiver_agent, sender_agent, hlc)
WHERE ended_ms IS NULL AND not_before_ms IS NOT NULL;

-- Messages that have used up their attempts.
CREATE INDEX IF NOT EXISTS a2a_messages_exhausted ON a2a_messages (scope_id, repository_id, receiver_agent)
WHERE ended_ms IS NULL AND delivery_attempts >= max_attempts;

CREATE INDEX IF NOT EXISTS a2a_messages_expiring ON a2a_messages (scope_id, repository_id, expires_ms)
WHERE ended_ms IS NULL AND expires_ms IS NOT NULL;

CREATE INDEX IF NOT EXISTS a2a_messages_awaited ON a2a_messages (scope_id, repository_id, ack_by_ms)
WHERE acknowledged = 0 AND ack_by_ms IS NOT NULL;

-- Dead letters, among all messages that have ended.
CREATE INDEX IF NOT EXISTS a2a_messages_ended ON a2a_messages (scope_id, repository_id, state, ended_ms)
WHERE ended_ms IS NOT NULL AND state = 'dead';

CREATE INDEX IF NOT EXISTS a2a_messages_of_thread ON a2a_messages (scope_id, repository_id, thread_id, id)
WHERE thread_id IS NOT NULL;

-- Messages to other scopes, which wait to be forwarded.
CREATE INDEX IF NOT EXISTS a2a_messages_outbound ON a2a_messages (scope_id, repository_id, receiver_agent)
WHERE ended_ms IS NULL AND instr(receiver_agent, '@') > 0;

-- Messages that arrived from other scopes, whatever became of them, so that none is stored twice.
CREATE TABLE IF NOT EXISTS scope_arrivals (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    origin        TEXT    NOT NULL,  -- the scope of the sender
    message_uuid  TEXT    NOT NULL,
    arrived_ms    INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, origin, message_uuid)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS scope_arrivals_by_age ON scope_arrivals (scope_id, repository_id, arrived_ms);

-- The node where each agent, or role, last received: the target of the relay; empty for commands.
CREATE TABLE IF NOT EXISTS a2a_inboxes (
    scope_id       TEXT    NOT NULL,
    repository_id  TEXT    NOT NULL,
    receiver_agent TEXT    NOT NULL,
    node_id        TEXT    NOT NULL,
    seen_ms        INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, receiver_agent)
) WITHOUT ROWID;

-- The nodes that receive from an inbox. A sole recipient may lease it: until the lease ends no other node, and no
-- command, claims from it, so that the holder can hand out relayed messages while the database is unreachable.
CREATE TABLE IF NOT EXISTS a2a_receivers (
    scope_id       TEXT    NOT NULL,
    repository_id  TEXT    NOT NULL,
    receiver_agent TEXT    NOT NULL,
    node_id        TEXT    NOT NULL,            -- or the chain of a command
    seen_ms        INTEGER NOT NULL,
    lease_until_ms INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (scope_id, repository_id, receiver_agent, node_id)
) WITHOUT ROWID;

-- Jobs: one row each, found by the hash of its manifest or by its ULID. Everything here follows from the ops of
-- the log, in commit order; only `lease_until_ms` is the database's own. `id` is the order of scheduling.
CREATE TABLE IF NOT EXISTS jobs (
    id               INTEGER PRIMARY KEY,
    scope_id         TEXT    NOT NULL,
    repository_id    TEXT    NOT NULL,
    job_id           TEXT    NOT NULL,
    ulid             TEXT    NOT NULL,
    kind             TEXT    NOT NULL,
    state            TEXT    NOT NULL DEFAULT 'pending'
                     CHECK (state IN ('pending', 'claimed', 'running', 'succeeded', 'failed', 'aborted')),
    priority         INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 3),
    waits            INTEGER NOT NULL DEFAULT 0,  -- the number of unmet dependencies
    not_before_ms    INTEGER NOT NULL,            -- the time since which, or from which, it may be claimed
    max_attempts     INTEGER NOT NULL,
    backoff_ms       INTEGER NOT NULL,
    lease_ms         INTEGER,                     -- NULL: the default of its kind or worker
    claimer          TEXT,                        -- the node that has claimed it, or did last
    claim_token      INTEGER NOT NULL DEFAULT 0,  -- rises with every claim, and with the time
    lease_until_ms   INTEGER,                     -- NULL: not claimed
    attempts         INTEGER NOT NULL DEFAULT 0,  -- claims
    failures         INTEGER NOT NULL DEFAULT 0,  -- failed attempts
    created_ms       INTEGER NOT NULL,
    started_ms       INTEGER,
    ended_ms         INTEGER,
    exit_code        INTEGER,
    reason           TEXT,                        -- why it was last yielded, failed or aborted
    output_artifacts TEXT    NOT NULL DEFAULT '[]',
    retry_of         TEXT,
    scheduled_by     TEXT    NOT NULL,
    seed             TEXT    NOT NULL,            -- random: input of the ranking of nodes
    last_op          TEXT    NOT NULL,            -- the op of its last transition
    manifest         TEXT    NOT NULL,            -- canonical JSON; `job_id` is its hash
    max_interruptions INTEGER NOT NULL DEFAULT 5,  -- after more of them it fails
    interruptions    INTEGER NOT NULL DEFAULT 0,  -- attempts that ended with their worker or their lease
    binding TEXT,                                 -- what of the rhythm it waits for; NULL: nothing
    UNIQUE (scope_id, repository_id, job_id),
    CHECK ((state IN ('claimed', 'running')) = (lease_until_ms IS NOT NULL)),
    CHECK ((state IN ('succeeded', 'failed', 'aborted')) = (ended_ms IS NOT NULL))
);

CREATE UNIQUE INDEX IF NOT EXISTS jobs_by_ulid ON jobs (scope_id, repository_id, ulid);

-- Jobs that can be claimed, now or later. It stays small however many have ended.
CREATE INDEX IF NOT EXISTS jobs_ready ON jobs (scope_id, repository_id, kind, priority, not_before_ms)
WHERE state = 'pending' AND waits = 0;

CREATE INDEX IF NOT EXISTS jobs_held ON jobs (scope_id, repository_id, lease_until_ms, claimer, kind)
WHERE lease_until_ms IS NOT NULL;

-- Pending jobs that are bound to the rhythm.
CREATE INDEX IF NOT EXISTS jobs_bound ON jobs (scope_id, repository_id, binding)
WHERE state = 'pending' AND binding IS NOT NULL;

-- Pending jobs with tags, as their manifests say. It may hold others, too.
CREATE INDEX IF NOT EXISTS jobs_tagged ON jobs (scope_id, repository_id)
WHERE state = 'pending' AND instr(manifest, '"tags":[') > 0;

-- Jobs that wait without a worker: for what their steps wait for, or for an answer.
CREATE INDEX IF NOT EXISTS jobs_suspended ON jobs (scope_id, repository_id, kind, not_before_ms, waits)
WHERE state = 'pending' AND attempts > 0 AND (waits > 0 OR reason = 'it sleeps');

-- Jobs that wait for ops in the log, as their manifests say. It may hold others, too.
CREATE INDEX IF NOT EXISTS jobs_awaiting_ops ON jobs (scope_id, repository_id, id)
WHERE state = 'pending' AND waits > 0 AND instr(manifest, '{"op":') > 0;

-- Jobs not yet done, and failed ones: what people look for among millions.
CREATE INDEX IF NOT EXISTS jobs_open ON jobs (scope_id, repository_id, id) WHERE ended_ms IS NULL;

CREATE INDEX IF NOT EXISTS jobs_gone_wrong ON jobs (scope_id, repository_id, state, id)
WHERE state IN ('failed', 'aborted');

-- Failed jobs by the time of their failure, and the retries of jobs: whether a failure still needs attention.
CREATE INDEX IF NOT EXISTS jobs_failed ON jobs (scope_id, repository_id, ended_ms) WHERE state = 'failed';
CREATE INDEX IF NOT EXISTS jobs_retries ON jobs (scope_id, repository_id, retry_of) WHERE retry_of IS NOT NULL;

-- The dependencies of jobs: another job's success, its end, or an op in the log.
CREATE TABLE IF NOT EXISTS job_predecessors (
    scope_id       TEXT    NOT NULL,
    repository_id  TEXT    NOT NULL,
    job_id         TEXT    NOT NULL,
    predecessor    TEXT    NOT NULL,
    awaited        TEXT    NOT NULL CHECK (awaited IN ('success', 'end', 'op')),
    PRIMARY KEY (scope_id, repository_id, job_id, predecessor)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS job_successors ON job_predecessors (scope_id, repository_id, predecessor, awaited);

-- An op that jobs wait for counts from its entry on, whatever its kind.
CREATE TRIGGER IF NOT EXISTS awaited_op_comes AFTER INSERT ON agent_oplog WHEN NEW.accepted = 1
BEGIN
    UPDATE jobs SET waits = waits - 1
    WHERE scope_id = NEW.scope_id AND repository_id = NEW.repository_id AND state = 'pending' AND waits > 0
      AND job_id IN (
          SELECT job_id FROM job_predecessors
          WHERE scope_id = NEW.scope_id AND repository_id = NEW.repository_id AND predecessor = NEW.op_id
            AND awaited = 'op');
END;

-- The jobs that nodes have claimed on behalf of agents. A row counts only while its job has the same token.
CREATE TABLE IF NOT EXISTS job_takes (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    claim_token   INTEGER NOT NULL,
    agent_id      TEXT    NOT NULL,
    grant_id      TEXT,
    lease_ms      INTEGER NOT NULL,
    artifacts     TEXT    NOT NULL DEFAULT '[]',  -- kept so far: name, hash, size and type of each
    start_op      TEXT,                           -- the op that started the attempt; NULL: the job's last op
    PRIMARY KEY (scope_id, repository_id, job_id)
) WITHOUT ROWID;

-- What jobs wait to be answered, by the last question of each: the job waits for the op that answers it.
CREATE TABLE IF NOT EXISTS job_questions (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    question_id   TEXT    NOT NULL,  -- the op that will answer it
    asked_by      TEXT    NOT NULL,  -- the agent or node whose attempt asks
    asked_of      TEXT,              -- the agent that is asked; NULL: any
    asked_ms      INTEGER NOT NULL,
    expires_ms    INTEGER,
    escalate_to   TEXT,
    escalate_ms   INTEGER,
    question      TEXT    NOT NULL,
    answered_by   TEXT,              -- NULL: not answered; the answer is in the op
    PRIMARY KEY (scope_id, repository_id, job_id)
) WITHOUT ROWID;

-- What suspended jobs wait for by an op of their own: the end of a deadline, a message, or jobs with a deadline.
CREATE TABLE IF NOT EXISTS job_waits (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    n             INTEGER NOT NULL,
    wake_op       TEXT    NOT NULL,  -- the op that wakes the job, whichever of its waits is over first
    until_ms      INTEGER,           -- when it is over at the latest
    awaited_job   TEXT,              -- its waits for jobs are over when all of these have ended
    thread_id     TEXT,
    msg_type      TEXT,
    receiver      TEXT,              -- a wait for a message has a thread, a receiver, or both
    after_id      INTEGER NOT NULL DEFAULT 0,  -- messages up to this one were looked at, and are not believed
    PRIMARY KEY (scope_id, repository_id, job_id, n)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS job_waits_until ON job_waits (scope_id, repository_id, until_ms)
WHERE until_ms IS NOT NULL;

-- Jobs whose abort concerns others: compensations run, and jobs that their steps wait for are aborted.
CREATE TABLE IF NOT EXISTS job_cleanups (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    PRIMARY KEY (scope_id, repository_id, job_id)
) WITHOUT ROWID;

-- Tasks of MCP clients: by which a client reads, answers and cancels a job that it has submitted. A row only says
-- where to look: the op that scheduled the job has the hash, too.
CREATE TABLE IF NOT EXISTS mcp_tasks (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    task_hash     TEXT    NOT NULL,  -- of the task's id, which only the client has
    job_id        TEXT    NOT NULL,
    agent_id      TEXT    NOT NULL,  -- the agent that has submitted the job
    approval_id   TEXT,              -- the approval that the job waits for, or has waited for
    created_ms    INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, task_hash)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS mcp_tasks_of_agent ON mcp_tasks (scope_id, repository_id, agent_id, created_ms);
CREATE INDEX IF NOT EXISTS mcp_tasks_by_age ON mcp_tasks (scope_id, repository_id, created_ms);

-- The number of jobs of each kind in each state. The triggers below write it, and pruning.
CREATE TABLE IF NOT EXISTS job_counts (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    state         TEXT    NOT NULL,
    jobs          INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, kind, state)
) WITHOUT ROWID;

CREATE TRIGGER IF NOT EXISTS job_comes AFTER INSERT ON jobs
BEGIN
    INSERT INTO job_counts VALUES (NEW.scope_id, NEW.repository_id, NEW.kind, NEW.state, 1)
    ON CONFLICT DO UPDATE SET jobs = jobs + 1;
END;

CREATE TRIGGER IF NOT EXISTS job_moves AFTER UPDATE OF state ON jobs WHEN NEW.state <> OLD.state
BEGIN
    UPDATE job_counts SET jobs = jobs - 1
    WHERE scope_id = OLD.scope_id AND repository_id = OLD.repository_id AND kind = OLD.kind
      AND state = OLD.state;
    INSERT INTO job_counts VALUES (NEW.scope_id, NEW.repository_id, NEW.kind, NEW.state, 1)
    ON CONFLICT DO UPDATE SET jobs = jobs + 1;
END;

-- The settings of job kinds; a kind without a row has the defaults.
CREATE TABLE IF NOT EXISTS job_kinds (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    is_paused     INTEGER NOT NULL DEFAULT 0,
    max_running   INTEGER,                     -- maximum of claimed jobs in the whole mesh
    rate          INTEGER,                     -- maximum of claims in `rate_ms`
    rate_ms       INTEGER,
    lease_ms      INTEGER,
    is_audited    INTEGER NOT NULL DEFAULT 0,  -- a success requires a snapshot of the inference
    PRIMARY KEY (scope_id, repository_id, kind),
    CHECK ((rate IS NULL) = (rate_ms IS NULL))
) WITHOUT ROWID;

-- Recent claims of jobs of kinds with a rate.
CREATE TABLE IF NOT EXISTS job_claims (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    claimed_ms    INTEGER NOT NULL,
    job_id        TEXT    NOT NULL,
    claim_token   INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, kind, claimed_ms, job_id, claim_token)
) WITHOUT ROWID;

-- Draining nodes: they claim no more jobs.
CREATE TABLE IF NOT EXISTS job_drains (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,
    since_ms      INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;

-- The notes of running jobs: progress and checkpoint.
CREATE TABLE IF NOT EXISTS job_notes (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    claim_token   INTEGER NOT NULL,
    progress      REAL,
    message       TEXT,
    checkpoint    TEXT,              -- JSON
    noted_ms      INTEGER NOT NULL,
    start_op TEXT,                   -- of the attempt that has written the checkpoint
    signature TEXT,                  -- of its worker
    PRIMARY KEY (scope_id, repository_id, job_id)
) WITHOUT ROWID;

-- The durable steps of jobs: what each has returned, or how it failed. Rows are appended only. Each is linked to the one
-- before, and the last row of each write is signed by the worker.
CREATE TABLE IF NOT EXISTS job_steps (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    seq           INTEGER NOT NULL,  -- in the order of writing, from 1
    place         INTEGER NOT NULL,  -- of the step in the handler, from 1; its last row counts
    name          TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    state         TEXT    NOT NULL,  -- done, failed or waiting
    value         TEXT    NOT NULL,  -- JSON: the result, the failure, or what is waited for
    claim_token   INTEGER NOT NULL,
    began_ms      INTEGER NOT NULL,
    ended_ms      INTEGER NOT NULL,
    link          TEXT    NOT NULL,  -- the hash of this row and the link before
    start_op      TEXT    NOT NULL,  -- of the attempt that has written it
    signature     TEXT,              -- of the link; NULL: a later row of the same write has it
    PRIMARY KEY (scope_id, repository_id, job_id, seq)
) WITHOUT ROWID;

-- The output and log of jobs, in pieces, up to a limit; their artifacts hold all of it.
CREATE TABLE IF NOT EXISTS job_logs (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    n             INTEGER NOT NULL,
    claim_token   INTEGER NOT NULL,
    stream        TEXT    NOT NULL CHECK (stream IN ('stdout', 'stderr', 'log')),
    text          TEXT    NOT NULL,
    logged_ms     INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, job_id, n)
) WITHOUT ROWID;

-- Recurring jobs. The first node to see the due time schedules the next one, and sets the time after it.
CREATE TABLE IF NOT EXISTS job_crons (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    expression    TEXT    NOT NULL,
    timezone      TEXT    NOT NULL,
    manifest      TEXT    NOT NULL,
    options       TEXT    NOT NULL,
    next_ms       INTEGER NOT NULL,
    last_ms       INTEGER,
    last_job      TEXT,
    added_ms      INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, name)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS job_crons_due ON job_crons (scope_id, repository_id, next_ms);

-- Rules: jobs that are scheduled when ops are logged. The first node to see an op schedules its job, and advances
-- the position in the same write.
CREATE TABLE IF NOT EXISTS job_rules (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    op_kind       TEXT    NOT NULL,
    fields        TEXT    NOT NULL,  -- JSON object: payload fields of ops, and the values that they must have
    manifest      TEXT    NOT NULL,
    options       TEXT    NOT NULL,
    position      INTEGER NOT NULL,  -- the last entry of the log that was considered
    fired         INTEGER NOT NULL,  -- jobs since the minute began
    minute_ms     INTEGER NOT NULL,
    last_op       TEXT,
    last_job      TEXT,
    added_ms      INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, name)
) WITHOUT ROWID;

-- Two tables of the agents themselves, for optimistic writes. An agent's memories:
CREATE TABLE IF NOT EXISTS memories (
    scope_id      TEXT NOT NULL,
    repository_id TEXT NOT NULL,
    memory_key    TEXT NOT NULL,
    agent_id      TEXT,
    content       TEXT,
    tags          TEXT,
    importance    INTEGER NOT NULL DEFAULT 0,
    written_at    TEXT NOT NULL,
    PRIMARY KEY (scope_id, repository_id, memory_key)
) WITHOUT ROWID;

-- An agent's sessions:
CREATE TABLE IF NOT EXISTS agent_sessions (
    scope_id      TEXT NOT NULL,
    repository_id TEXT NOT NULL,
    session_id    TEXT NOT NULL,
    agent_id      TEXT,
    status        TEXT,
    task          TEXT,
    summary       TEXT,
    turns         INTEGER NOT NULL DEFAULT 0,
    written_at    TEXT NOT NULL,
    PRIMARY KEY (scope_id, repository_id, session_id)
) WITHOUT ROWID;

-- Conversations of agent frameworks: a graph's threads, an agent's sessions. All rows of one go together, when it expires.
CREATE TABLE IF NOT EXISTS conversations (
    scope_id      TEXT NOT NULL,
    repository_id TEXT NOT NULL,
    kind          TEXT NOT NULL,  -- graph or session
    name          TEXT NOT NULL,  -- as its framework calls it
    expires_ms    INTEGER,        -- NULL: never; each write postpones it
    PRIMARY KEY (scope_id, repository_id, kind, name)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS conversations_by_expiry ON conversations (scope_id, repository_id, expires_ms)
WHERE expires_ms IS NOT NULL;

-- The checkpoints of graphs, as their framework has serialized them.
CREATE TABLE IF NOT EXISTS graph_checkpoints (
    id            INTEGER PRIMARY KEY,
    scope_id      TEXT NOT NULL,
    repository_id TEXT NOT NULL,
    thread_id     TEXT NOT NULL,
    namespace     TEXT NOT NULL,  -- empty, or that of a graph within the graph
    checkpoint_id TEXT NOT NULL,  -- sorts by time
    parent_id     TEXT,
    run_id        TEXT,
    metadata      TEXT NOT NULL,  -- JSON
    type          TEXT NOT NULL,  -- of the serialization
    checkpoint    BLOB NOT NULL,
    UNIQUE (scope_id, repository_id, thread_id, namespace, checkpoint_id)
);
CREATE INDEX IF NOT EXISTS graph_checkpoints_of_run ON graph_checkpoints (scope_id, repository_id, run_id)
WHERE run_id IS NOT NULL;

-- What the tasks of a graph have written since a checkpoint.
CREATE TABLE IF NOT EXISTS graph_writes (
    id            INTEGER PRIMARY KEY,
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    thread_id     TEXT    NOT NULL,
    namespace     TEXT    NOT NULL,
    checkpoint_id TEXT    NOT NULL,
    task_id       TEXT    NOT NULL,
    position      INTEGER NOT NULL,  -- in the writes of the task; below 0: an error, an interrupt and the like
    task_path     TEXT    NOT NULL,
    channel       TEXT    NOT NULL,
    type          TEXT    NOT NULL,
    value         BLOB    NOT NULL,
    UNIQUE (scope_id, repository_id, thread_id, namespace, checkpoint_id, task_id, position)
);

-- The items of the sessions of agents: messages and calls of tools, in order. A session is a conversation.
CREATE TABLE IF NOT EXISTS session_items (
    id            INTEGER PRIMARY KEY,
    scope_id      TEXT NOT NULL,
    repository_id TEXT NOT NULL,
    session_id    TEXT NOT NULL,
    item          TEXT NOT NULL,  -- JSON
    UNIQUE (scope_id, repository_id, session_id, id)
);

-- Artifacts of jobs, by content. Small ones are stored here; for larger ones, the node that has the file.
CREATE TABLE IF NOT EXISTS job_artifacts (
    id            INTEGER PRIMARY KEY,
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    hash          TEXT    NOT NULL,  -- blake3:<hex>
    size          INTEGER NOT NULL CHECK (size >= 0),
    type          TEXT    NOT NULL,  -- as first stored
    node_id       TEXT    NOT NULL,
    body          TEXT,              -- base64
    created_ms    INTEGER NOT NULL,
    used_ms INTEGER,                 -- when a job last had it as an output, to the hour; NULL: not known yet
    UNIQUE (scope_id, repository_id, hash)
);

-- Artifacts of which it is not known when they were last used. Pruning gives them a time.
CREATE INDEX IF NOT EXISTS job_artifacts_undated ON job_artifacts (scope_id, repository_id) WHERE used_ms IS NULL;

-- Files of artifacts that no row names any more: their node removes its file, and other nodes remove their copies.
CREATE TABLE IF NOT EXISTS artifact_removals (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    hash          TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,  -- the node that has the file
    noted_ms      INTEGER NOT NULL,
    is_done       INTEGER NOT NULL DEFAULT 0,  -- that node has removed it
    PRIMARY KEY (scope_id, repository_id, hash, node_id)
) WITHOUT ROWID;

-- How long rows are kept: the policies that differ from the defaults in code.
CREATE TABLE IF NOT EXISTS retention_policies (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    subject       TEXT    NOT NULL,
    kind          TEXT    NOT NULL,  -- empty: all kinds without a policy of their own
    age_ms        INTEGER,           -- NULL: kept whatever their age
    max_rows      INTEGER,           -- NULL: any number
    max_bytes INTEGER,               -- NULL: any number
    PRIMARY KEY (scope_id, repository_id, subject, kind)
) WITHOUT ROWID;

-- How far pruning is, by subject. The empty subject stands for the whole pass.
CREATE TABLE IF NOT EXISTS retention_progress (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    subject       TEXT    NOT NULL,
    position      INTEGER NOT NULL,  -- where the next pass continues; 0: at the beginning
    pruned        INTEGER NOT NULL,  -- the rows pruned so far
    needed        INTEGER NOT NULL,  -- the rows past their policy that something still needed
    needed_so_far INTEGER NOT NULL,  -- the same, of the pass that is not complete
    attempted_ms  INTEGER NOT NULL,
    completed_ms  INTEGER,           -- when a pass last reached the end; NULL: never
    PRIMARY KEY (scope_id, repository_id, subject)
) WITHOUT ROWID;

-- The size of each table at the end of a day, for growth and forecast. Rows are pruned after a year.
CREATE TABLE IF NOT EXISTS size_samples (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    day           INTEGER NOT NULL,  -- since 1970
    table_name    TEXT    NOT NULL,
    row_count     INTEGER NOT NULL,
    bytes         INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, day, table_name)
) WITHOUT ROWID;

-- --- the rhythm ------------------------------------------------------------------------------------

-- The tempos of the mesh: each applies from its anchor, which is a downbeat of the previous one, until the next.
-- The first, which has no row, is the built-in one with the anchor 0.
CREATE TABLE IF NOT EXISTS tempo_policies (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    anchor_ms     INTEGER NOT NULL,  -- its first downbeat
    policy_hash   TEXT    NOT NULL,
    cluster_id    TEXT    NOT NULL,
    tempo_bpm     REAL    NOT NULL,
    bar_len_beats INTEGER NOT NULL,
    first_bar     INTEGER NOT NULL,  -- the number of bars before the anchor
    document      TEXT    NOT NULL,  -- the policy, as written
    reason        TEXT    NOT NULL,
    op_id         TEXT    NOT NULL,
    hlc           TEXT    NOT NULL,
    announced_ms  INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, anchor_ms)
) WITHOUT ROWID;

-- Tempo decisions: the next leader continues from the last one.
CREATE INDEX IF NOT EXISTS agent_oplog_of_tempo ON agent_oplog (scope_id, repository_id, id)
WHERE kind = 'TempoDecision';

-- The incident that freezes the tempo: at most one row for each mesh, removed when it is cleared.
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

-- The tempo policy of each node: one row per node, written when it changes.
CREATE TABLE IF NOT EXISTS beat_pulses (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,
    document      TEXT    NOT NULL,  -- its policy
    tempo_bpm     REAL    NOT NULL,
    bar_len_beats INTEGER NOT NULL,
    anchor_ms     INTEGER NOT NULL,
    hlc           TEXT    NOT NULL,
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;

-- Status claims of agents: the last of each beat. `serial` rises with every change, over all rows.
CREATE TABLE IF NOT EXISTS status_claims (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    window_ms     INTEGER NOT NULL,  -- when the bar began
    agent_id      TEXT    NOT NULL,
    task_id       TEXT    NOT NULL,
    epoch_ms      INTEGER NOT NULL,  -- when the beat began
    beat_index    INTEGER NOT NULL,
    state         TEXT    NOT NULL CHECK (
        state IN ('planning', 'executing', 'waiting', 'review', 'done', 'failed')
    ),
    wait_for      TEXT    NOT NULL DEFAULT '[]',
    beats_left    INTEGER,
    progress      REAL,
    notes         TEXT    NOT NULL DEFAULT '',
    overran       INTEGER NOT NULL DEFAULT 0,
    began_ms      INTEGER NOT NULL,  -- the agent's first claim of the task
    useful_ms     INTEGER,           -- the first useful result
    node_id       TEXT    NOT NULL,
    hlc           TEXT    NOT NULL,
    serial        INTEGER NOT NULL,
    phase TEXT,
    score TEXT,                      -- the address of its score, or the kind of its job
    since_ms INTEGER,                -- when its state, and what it waits for, began
    batch INTEGER,                   -- by which its node has signed it
    PRIMARY KEY (scope_id, repository_id, window_ms, agent_id, task_id, epoch_ms)
) WITHOUT ROWID;

-- What a node has signed of its status claims: the hashes of all that it wrote at once.
CREATE TABLE IF NOT EXISTS status_signatures (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    batch         INTEGER NOT NULL,  -- the time in milliseconds, times 1024, plus a random number
    node_id       TEXT    NOT NULL,
    hashes        TEXT    NOT NULL,
    signature     TEXT    NOT NULL,
    PRIMARY KEY (scope_id, repository_id, batch, node_id)
) WITHOUT ROWID;

CREATE UNIQUE INDEX IF NOT EXISTS status_claims_serial ON status_claims (scope_id, repository_id, serial);

-- Bar reports. A later revision includes late claims; a row may stand for many missing bars.
CREATE TABLE IF NOT EXISTS bar_reports (
    scope_id       TEXT    NOT NULL,
    repository_id  TEXT    NOT NULL,
    window_ms      INTEGER NOT NULL,
    revision       INTEGER NOT NULL,
    window_id      TEXT    NOT NULL,
    until_ms       INTEGER NOT NULL,
    is_missing     INTEGER NOT NULL DEFAULT 0,
    document       TEXT    NOT NULL,
    through_serial INTEGER NOT NULL,  -- every claim up to this serial is in it, or in an earlier report
    phrases        INTEGER NOT NULL,  -- the number of ended phrases in it
    threads        INTEGER NOT NULL,  -- the number of help threads in it
    node_id        TEXT    NOT NULL,
    hlc            TEXT    NOT NULL,
    reported_ms    INTEGER NOT NULL,
    jobs INTEGER NOT NULL DEFAULT 0,  -- the number of jobs in it that are only counted
    PRIMARY KEY (scope_id, repository_id, window_ms, revision)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS bar_reports_through ON bar_reports (scope_id, repository_id, through_serial);

-- Help threads: who asked whom, what was promised, and the result. Times are computed from the beats.
CREATE TABLE IF NOT EXISTS help_threads (
    scope_id         TEXT    NOT NULL,
    repository_id    TEXT    NOT NULL,
    thread_id        TEXT    NOT NULL,
    asker            TEXT    NOT NULL,
    helper           TEXT,
    task_id          TEXT    NOT NULL DEFAULT '',
    state            TEXT    NOT NULL CHECK (
        state IN ('asked', 'promised', 'kept', 'broken', 'expired', 'unanswered')
    ),
    promise_beats    INTEGER,
    confidence       REAL,
    fail_after_beats INTEGER,
    on_fail          TEXT    NOT NULL DEFAULT '',
    asked_ms         INTEGER NOT NULL,
    promised_ms      INTEGER,
    due_ms           INTEGER,          -- an answer until then keeps the promise
    closes_ms        INTEGER NOT NULL, -- after that it accepts nothing more
    ended_ms         INTEGER,
    answer_id        TEXT,             -- the message with the answer
    PRIMARY KEY (scope_id, repository_id, thread_id)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS help_threads_open ON help_threads (scope_id, repository_id, closes_ms)
    WHERE ended_ms IS NULL;
CREATE INDEX IF NOT EXISTS help_threads_ended ON help_threads (scope_id, repository_id, ended_ms)
    WHERE ended_ms IS NOT NULL;
-- The few of them whose promise was broken.
CREATE INDEX IF NOT EXISTS help_threads_broken ON help_threads (scope_id, repository_id, ended_ms)
WHERE ended_ms IS NOT NULL AND state IN ('broken', 'expired', 'unanswered');

-- Ended phrases, and their cost.
CREATE TABLE IF NOT EXISTS phrase_ends (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    phrase_id     TEXT    NOT NULL,  -- a ULID
    agent_id      TEXT    NOT NULL,
    task_id       TEXT    NOT NULL,
    job_id        TEXT,
    account       TEXT    NOT NULL DEFAULT '',
    attempt       INTEGER NOT NULL,
    outcome       TEXT    NOT NULL CHECK (outcome IN ('done', 'degraded', 'deferred', 'failed')),
    beats         TEXT    NOT NULL,  -- JSON: beats used, by phase
    waited        TEXT    NOT NULL,  -- JSON: beats waited, by budget
    overruns      INTEGER NOT NULL,
    first_useful_ms INTEGER,
    resources     TEXT    NOT NULL,  -- JSON
    bu            REAL    NOT NULL,
    cost          REAL    NOT NULL,
    note          TEXT    NOT NULL DEFAULT '',
    window_ms     INTEGER NOT NULL,  -- the bar in which it ended
    began_ms      INTEGER NOT NULL,
    ended_ms      INTEGER NOT NULL,
    node_id       TEXT    NOT NULL,
    hlc           TEXT    NOT NULL,
    PRIMARY KEY (scope_id, repository_id, phrase_id)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS phrase_ends_of_window ON phrase_ends (scope_id, repository_id, window_ms);
CREATE INDEX IF NOT EXISTS phrase_ends_of_agent ON phrase_ends (scope_id, repository_id, agent_id, ended_ms, bu);
CREATE INDEX IF NOT EXISTS phrase_ends_of_job ON phrase_ends (scope_id, repository_id, job_id, began_ms, bu);

-- Sums over the jobs that ended in a bar and have no row in `phrase_ends`: those without a score or budget, and those
-- with a score that began and succeeded within a beat.
CREATE TABLE IF NOT EXISTS job_tallies (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    window_ms     INTEGER NOT NULL,  -- the bar in which they ended
    agent_id      TEXT    NOT NULL,
    is_scored     INTEGER NOT NULL,
    done          INTEGER NOT NULL,
    failed        INTEGER NOT NULL,
    done_beats    INTEGER NOT NULL,  -- the beats in which jobs ran that are done
    failed_beats  INTEGER NOT NULL,
    bu            REAL    NOT NULL,
    cost          REAL    NOT NULL,
    cpu_sec       REAL    NOT NULL,
    mem_gbs       REAL    NOT NULL,
    io_mb         REAL    NOT NULL,
    delays        TEXT    NOT NULL,  -- JSON: how many jobs were done after how long, by the class of the delay
    PRIMARY KEY (scope_id, repository_id, window_ms, agent_id, is_scored)
) WITHOUT ROWID;

-- Metered attempts that another node has taken from their worker, until their end is recorded: a row that stays was
-- lost with its worker. Nodes of earlier versions write a row when an attempt begins.
CREATE TABLE IF NOT EXISTS phrase_begins (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    phrase_id     TEXT    NOT NULL,  -- the id that its end has
    claim_token   INTEGER NOT NULL,
    agent_id      TEXT    NOT NULL,
    account       TEXT    NOT NULL,
    role          TEXT    NOT NULL,
    attempt       INTEGER NOT NULL,
    began_ms      INTEGER NOT NULL,
    lease_until_ms INTEGER,          -- known when the job was released, or has ended unsuccessfully
    PRIMARY KEY (scope_id, repository_id, job_id, phrase_id)
) WITHOUT ROWID;

CREATE TRIGGER IF NOT EXISTS phrase_loses_its_lease AFTER UPDATE OF state ON jobs
WHEN OLD.lease_until_ms IS NOT NULL AND NEW.lease_until_ms IS NULL AND NEW.state <> 'succeeded'
BEGIN
    UPDATE phrase_begins SET lease_until_ms = OLD.lease_until_ms
    WHERE scope_id = OLD.scope_id AND repository_id = OLD.repository_id AND job_id = OLD.job_id
      AND claim_token = OLD.claim_token;
END;

-- The last checkpoint of a task, taken on a downbeat.
CREATE TABLE IF NOT EXISTS phrase_checkpoints (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    agent_id      TEXT    NOT NULL,
    task_id       TEXT    NOT NULL,
    window_ms     INTEGER NOT NULL,
    value         TEXT    NOT NULL,
    hlc           TEXT    NOT NULL,
    PRIMARY KEY (scope_id, repository_id, agent_id, task_id)
) WITHOUT ROWID;

-- The budgets of agents and accounts.
CREATE TABLE IF NOT EXISTS budgets (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    subject       TEXT    NOT NULL,  -- agent:NAME or account:NAME
    document      TEXT    NOT NULL,
    since_ms      INTEGER NOT NULL,  -- earlier spending does not count
    hlc           TEXT    NOT NULL,
    spent_bu      REAL    NOT NULL DEFAULT 0,  -- maintained by the trigger below: there may be too many ends to sum
    PRIMARY KEY (scope_id, repository_id, subject)
) WITHOUT ROWID;

CREATE TRIGGER IF NOT EXISTS phrase_is_paid AFTER INSERT ON phrase_ends
BEGIN
    UPDATE budgets SET spent_bu = spent_bu + NEW.bu
    WHERE scope_id = NEW.scope_id AND repository_id = NEW.repository_id AND since_ms <= NEW.ended_ms
      AND subject IN ('agent:' || NEW.agent_id, 'account:' || NEW.account);
    DELETE FROM phrase_begins
    WHERE scope_id = NEW.scope_id AND repository_id = NEW.repository_id AND job_id = NEW.job_id
      AND phrase_id = NEW.phrase_id;
END;

-- What agents and accounts may spend on language models: one row for each such limit of a budget.
CREATE TABLE IF NOT EXISTS spend_limits (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    subject       TEXT    NOT NULL,  -- of the budget
    resource      TEXT    NOT NULL,  -- tokens, input_tokens, output_tokens, or money:CURRENCY
    most          INTEGER NOT NULL,  -- tokens, or millionths of the currency
    reserve       INTEGER NOT NULL,  -- what an attempt reserves whose job says nothing about it
    spent         INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (scope_id, repository_id, subject, resource)
) WITHOUT ROWID;

-- What running attempts have reserved of these limits. A row counts while its job is held under its claim token.
CREATE TABLE IF NOT EXISTS spend_reservations (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    subject       TEXT    NOT NULL,
    resource      TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    claim_token   INTEGER NOT NULL,
    amount        INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, subject, resource, job_id)
) WITHOUT ROWID;

-- The tokens that jobs have used, and their price: sums over the attempts that ended in a bar.
CREATE TABLE IF NOT EXISTS token_spend (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    agent_id      TEXT    NOT NULL,
    window_ms     INTEGER NOT NULL,  -- the bar in which they were charged
    account       TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    model         TEXT    NOT NULL,
    currency      TEXT    NOT NULL,  -- empty: the node knew no prices
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    micros        INTEGER NOT NULL,  -- millionths of the currency
    unpriced      INTEGER NOT NULL,  -- the tokens among them whose price was not known
    charged_ms    INTEGER NOT NULL,  -- the last of the charges
    PRIMARY KEY (scope_id, repository_id, agent_id, window_ms, account, kind, model, currency)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS token_spend_of_window ON token_spend (scope_id, repository_id, window_ms);
