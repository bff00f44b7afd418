-- Bring a database of any version from 1 to 7 to version 8.
--
-- Before this migration a new version only created what was missing, so a table kept the shape it was created with, and
-- several versions were in use in more than one shape. The most recent: version 7 was in use without
-- `bar_reports.threads`, `budgets.spent_bu`, `phrase_begins` and its triggers. Each known difference has its own
-- condition here. The rest is the whole schema as it was at version 8, frozen: later changes have their own files.
-- New in version 8: `node_versions`.

-- Version 1, first shape.
-- if-missing: script_results.since_s
CREATE TABLE script_results_before AS SELECT * FROM script_results;
-- if-missing: script_results.since_s
DROP TABLE script_results;

-- Version 2, first shapes.
-- if-missing: deferred_ops.causal_deps
ALTER TABLE deferred_ops ADD COLUMN causal_deps TEXT NOT NULL DEFAULT '[]';
-- if-missing: mesh_heartbeats.beats
ALTER TABLE mesh_heartbeats ADD COLUMN beats INTEGER NOT NULL DEFAULT 0;

-- Version 3, first shapes: another definition.
DROP VIEW IF EXISTS lock_blockers;

-- Version 4, first shapes: ids that were never used again, and an index with another condition.
-- if: EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'a2a_messages' AND sql LIKE '%AUTOINCREMENT%')
CREATE TABLE a2a_messages_before AS SELECT * FROM a2a_messages;
-- if: EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'a2a_messages' AND sql LIKE '%AUTOINCREMENT%')
DROP TABLE a2a_messages;
-- if: EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'a2a_messages_awaited' AND sql NOT LIKE '%acknowledged = 0%')
DROP INDEX IF EXISTS a2a_messages_awaited;

-- Version 5, first shapes: logs by row id, and claims that a trigger counted.
-- if-missing: job_logs.n
CREATE TABLE job_logs_before AS SELECT * FROM job_logs;
-- if-missing: job_logs.n
DROP TABLE job_logs;
DROP TRIGGER IF EXISTS job_is_claimed;

-- Version 7, first shapes: budgets were summed by a view over an index of its own.
DROP VIEW IF EXISTS budget_standings;
DROP INDEX IF EXISTS phrase_ends_of_account;
-- if-missing: bar_reports.threads
ALTER TABLE bar_reports ADD COLUMN threads INTEGER NOT NULL DEFAULT 0;
-- if-missing: budgets.spent_bu
ALTER TABLE budgets ADD COLUMN spent_bu REAL NOT NULL DEFAULT 0;
-- if-missing: budgets.spent_bu
UPDATE budgets SET spent_bu = (
    SELECT total(e.bu) FROM phrase_ends AS e
    WHERE e.scope_id = budgets.scope_id AND e.repository_id = budgets.repository_id
      AND e.ended_ms >= budgets.since_ms
      AND budgets.subject IN ('agent:' || e.agent_id, 'account:' || e.account));

-- The whole schema at version 8.

CREATE TABLE IF NOT EXISTS mesh_schema (
    version     INTEGER PRIMARY KEY,
    oldest_code INTEGER NOT NULL,
    applied_at  TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);

CREATE TABLE IF NOT EXISTS script_results (
    scope_id         TEXT NOT NULL,
    repository_id    TEXT NOT NULL,
    script_key       TEXT NOT NULL,
    writer           TEXT NOT NULL,
    failed_statement INTEGER,
    since_s          INTEGER NOT NULL DEFAULT (CAST(strftime('%s', 'now') AS INTEGER)),
    PRIMARY KEY (scope_id, repository_id, script_key)
) WITHOUT ROWID;

-- if-missing: script_results.since_s
INSERT INTO script_results (scope_id, repository_id, script_key, writer, failed_statement)
SELECT scope_id, repository_id, script_key, writer, failed_statement FROM script_results_before;
-- if-missing: script_results.since_s
DROP TABLE script_results_before;

CREATE TABLE IF NOT EXISTS script_answers (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    script_key    TEXT    NOT NULL,
    n             INTEGER NOT NULL,
    c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11,
    PRIMARY KEY (scope_id, repository_id, script_key, n)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS refusals (
    reason TEXT CONSTRAINT guard CHECK (0)
);

CREATE TABLE IF NOT EXISTS lock_generations (
    scope_id       TEXT    NOT NULL,
    repository_id  TEXT    NOT NULL,
    generation     INTEGER NOT NULL,
    newest_pattern INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (scope_id, repository_id)
) WITHOUT ROWID;

-- Version 1 and 2 counted the tokens of each key on their own.
-- if: EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'lock_fences')
INSERT INTO lock_generations (scope_id, repository_id, generation)
SELECT scope_id, repository_id, max(fence_token) FROM lock_fences WHERE true GROUP BY scope_id, repository_id
ON CONFLICT DO UPDATE SET generation = max(generation, excluded.generation);
DROP TABLE IF EXISTS lock_fences;

CREATE TABLE IF NOT EXISTS distributed_locks (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    lock_key      TEXT    NOT NULL,
    holder_node   TEXT    NOT NULL,
    holder_agent  TEXT    NOT NULL,
    fence_token   INTEGER NOT NULL,
    request_id    TEXT    NOT NULL,
    acquired_at   TEXT    NOT NULL,
    expires_at    TEXT    NOT NULL,
    is_contended  INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (scope_id, repository_id, lock_key)
) WITHOUT ROWID;

CREATE TRIGGER IF NOT EXISTS lock_tokens_never_fall AFTER DELETE ON distributed_locks
BEGIN
    UPDATE lock_generations SET generation = max(generation, OLD.fence_token)
    WHERE scope_id = OLD.scope_id AND repository_id = OLD.repository_id;
END;

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

CREATE TABLE IF NOT EXISTS lock_patterns (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    number        INTEGER NOT NULL,
    lock_key      TEXT    NOT NULL,
    is_compared   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (scope_id, repository_id, number),
    UNIQUE (scope_id, repository_id, lock_key)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS lock_overlaps (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    lock_key      TEXT    NOT NULL,
    other_key     TEXT    NOT NULL,
    PRIMARY KEY (scope_id, repository_id, lock_key, other_key)
) WITHOUT ROWID;

CREATE VIEW IF NOT EXISTS lock_holds AS
SELECT scope_id, repository_id, lock_key, holder_node, holder_agent, fence_token, request_id, acquired_at,
    expires_at, 0 AS is_shared
FROM distributed_locks
UNION ALL
SELECT scope_id, repository_id, lock_key, holder_node, holder_agent, fence_token, request_id, acquired_at,
    expires_at, 1
FROM lock_shares;

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

CREATE TABLE IF NOT EXISTS node_incarnations (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,
    incarnation   INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS mesh_heartbeats (
    scope_id          TEXT    NOT NULL,
    repository_id     TEXT    NOT NULL,
    node_id           TEXT    NOT NULL,
    agent_id          TEXT,
    incarnation       INTEGER NOT NULL,
    beats             INTEGER NOT NULL,
    last_seen_ms      INTEGER NOT NULL,
    consuming_ms      INTEGER,
    progressing_ms    INTEGER,
    left_ms           INTEGER,
    started_ms        INTEGER NOT NULL,
    tick_ms           INTEGER NOT NULL,
    activity          TEXT    NOT NULL,
    host              TEXT    NOT NULL,
    pid               INTEGER NOT NULL,
    version           TEXT    NOT NULL,
    control_addr      TEXT,
    public_key        TEXT    NOT NULL,
    kinds             TEXT    NOT NULL,
    capacity          INTEGER NOT NULL,
    load              INTEGER NOT NULL,
    clock_distance_ms INTEGER NOT NULL,
    machine_id        TEXT    NOT NULL,
    place             TEXT    NOT NULL,
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS node_vitals (
    scope_id       TEXT    NOT NULL,
    repository_id  TEXT    NOT NULL,
    node_id        TEXT    NOT NULL,
    written        INTEGER NOT NULL,
    waiting        INTEGER NOT NULL,
    replica_lag_ms INTEGER,
    faults         TEXT    NOT NULL,
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS node_versions (
    scope_id       TEXT    NOT NULL,
    repository_id  TEXT    NOT NULL,
    node_id        TEXT    NOT NULL,
    incarnation    INTEGER NOT NULL,
    schema_version INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS node_keys (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,
    from_seq      INTEGER NOT NULL,
    public_key    TEXT    NOT NULL,
    PRIMARY KEY (scope_id, repository_id, node_id, from_seq)
) WITHOUT ROWID;

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

CREATE TABLE IF NOT EXISTS mesh_owner (
    scope_id      TEXT NOT NULL,
    repository_id TEXT NOT NULL,
    node_id       TEXT NOT NULL,
    public_key    TEXT NOT NULL,
    op_id         TEXT NOT NULL,
    PRIMARY KEY (scope_id, repository_id)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS agent_oplog (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,
    seq           INTEGER NOT NULL,
    op_id         TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    hlc           TEXT    NOT NULL,
    causal_deps   TEXT    NOT NULL,
    payload       TEXT    NOT NULL,
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

CREATE INDEX IF NOT EXISTS agent_oplog_of_owner ON agent_oplog (scope_id, repository_id, kind, hlc)
WHERE kind IN ('DesignateCoordinator', 'RouteKind', 'RekeyNode', 'Anchor');

CREATE TABLE IF NOT EXISTS deferred_ops (
    scope_id      TEXT NOT NULL,
    repository_id TEXT NOT NULL,
    op_id         TEXT NOT NULL,
    causal_deps   TEXT NOT NULL,
    dropped       TEXT,
    PRIMARY KEY (scope_id, repository_id, op_id)
) WITHOUT ROWID;

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

CREATE INDEX IF NOT EXISTS occ_conflicts_open ON occ_conflicts (scope_id, repository_id, conflict_id)
WHERE state = 'open';

CREATE TABLE IF NOT EXISTS a2a_messages (
    id                 INTEGER PRIMARY KEY,
    scope_id           TEXT    NOT NULL,
    repository_id      TEXT    NOT NULL,
    message_uuid       TEXT    NOT NULL,
    sender_agent       TEXT    NOT NULL,
    receiver_agent     TEXT    NOT NULL,
    msg_type           TEXT    NOT NULL,
    payload            TEXT    NOT NULL,
    priority           INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 3),
    thread_id          TEXT,
    correlation_id     TEXT,
    reply_to           TEXT,
    expires_ms         INTEGER,
    ack_by_ms          INTEGER,
    max_attempts       INTEGER NOT NULL,
    hlc                TEXT    NOT NULL,
    sender_node        TEXT    NOT NULL,
    sender_incarnation INTEGER,
    traceparent        TEXT,
    signature          TEXT    NOT NULL,
    created_at         TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    state              TEXT    NOT NULL DEFAULT 'stored'
                       CHECK (state IN ('stored', 'delivered', 'acked', 'dead', 'expired')),
    acknowledged       INTEGER NOT NULL DEFAULT 0,
    claim_owner        TEXT,
    claim_until_ms     INTEGER,
    delivery_attempts  INTEGER NOT NULL DEFAULT 0,
    not_before_ms      INTEGER,
    ended_ms           INTEGER,
    ended_reason       TEXT,
    overdue_ms         INTEGER,
    UNIQUE (scope_id, repository_id, message_uuid),
    CHECK ((state = 'acked') = acknowledged),
    CHECK ((state IN ('stored', 'delivered')) = (ended_ms IS NULL))
);

-- if: EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'a2a_messages' AND sql LIKE '%AUTOINCREMENT%')
INSERT INTO a2a_messages SELECT * FROM a2a_messages_before;
-- if: EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'a2a_messages' AND sql LIKE '%AUTOINCREMENT%')
DROP TABLE a2a_messages_before;

CREATE INDEX IF NOT EXISTS a2a_messages_open
ON a2a_messages (scope_id, repository_id, receiver_agent, sender_agent, hlc) WHERE ended_ms IS NULL;

CREATE INDEX IF NOT EXISTS a2a_messages_held_back
ON a2a_messages (scope_id, repository_id, receiver_agent, sender_agent, hlc)
WHERE ended_ms IS NULL AND not_before_ms IS NOT NULL;

CREATE INDEX IF NOT EXISTS a2a_messages_exhausted ON a2a_messages (scope_id, repository_id, receiver_agent)
WHERE ended_ms IS NULL AND delivery_attempts >= max_attempts;

CREATE INDEX IF NOT EXISTS a2a_messages_expiring ON a2a_messages (scope_id, repository_id, expires_ms)
WHERE ended_ms IS NULL AND expires_ms IS NOT NULL;

CREATE INDEX IF NOT EXISTS a2a_messages_awaited ON a2a_messages (scope_id, repository_id, ack_by_ms)
WHERE acknowledged = 0 AND ack_by_ms IS NOT NULL;

CREATE INDEX IF NOT EXISTS a2a_messages_ended ON a2a_messages (scope_id, repository_id, state, ended_ms)
WHERE ended_ms IS NOT NULL;

CREATE INDEX IF NOT EXISTS a2a_messages_of_thread ON a2a_messages (scope_id, repository_id, thread_id, id)
WHERE thread_id IS NOT NULL;

CREATE TABLE IF NOT EXISTS a2a_inboxes (
    scope_id       TEXT    NOT NULL,
    repository_id  TEXT    NOT NULL,
    receiver_agent TEXT    NOT NULL,
    node_id        TEXT    NOT NULL,
    seen_ms        INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, receiver_agent)
) WITHOUT ROWID;

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
    waits            INTEGER NOT NULL DEFAULT 0,
    not_before_ms    INTEGER NOT NULL,
    max_attempts     INTEGER NOT NULL,
    backoff_ms       INTEGER NOT NULL,
    lease_ms         INTEGER,
    claimer          TEXT,
    claim_token      INTEGER NOT NULL DEFAULT 0,
    lease_until_ms   INTEGER,
    attempts         INTEGER NOT NULL DEFAULT 0,
    failures         INTEGER NOT NULL DEFAULT 0,
    created_ms       INTEGER NOT NULL,
    started_ms       INTEGER,
    ended_ms         INTEGER,
    exit_code        INTEGER,
    reason           TEXT,
    output_artifacts TEXT    NOT NULL DEFAULT '[]',
    retry_of         TEXT,
    scheduled_by     TEXT    NOT NULL,
    seed             TEXT    NOT NULL,
    last_op          TEXT    NOT NULL,
    manifest         TEXT    NOT NULL,
    UNIQUE (scope_id, repository_id, job_id),
    CHECK ((state IN ('claimed', 'running')) = (lease_until_ms IS NOT NULL)),
    CHECK ((state IN ('succeeded', 'failed', 'aborted')) = (ended_ms IS NOT NULL))
);

CREATE UNIQUE INDEX IF NOT EXISTS jobs_by_ulid ON jobs (scope_id, repository_id, ulid);

CREATE INDEX IF NOT EXISTS jobs_ready ON jobs (scope_id, repository_id, kind, priority, not_before_ms)
WHERE state = 'pending' AND waits = 0;

CREATE INDEX IF NOT EXISTS jobs_held ON jobs (scope_id, repository_id, lease_until_ms, claimer, kind)
WHERE lease_until_ms IS NOT NULL;

CREATE INDEX IF NOT EXISTS jobs_awaiting_ops ON jobs (scope_id, repository_id, id)
WHERE state = 'pending' AND waits > 0 AND instr(manifest, '{"op":') > 0;

CREATE INDEX IF NOT EXISTS jobs_open ON jobs (scope_id, repository_id, id) WHERE ended_ms IS NULL;

CREATE INDEX IF NOT EXISTS jobs_gone_wrong ON jobs (scope_id, repository_id, state, id)
WHERE state IN ('failed', 'aborted');

CREATE TABLE IF NOT EXISTS job_predecessors (
    scope_id       TEXT    NOT NULL,
    repository_id  TEXT    NOT NULL,
    job_id         TEXT    NOT NULL,
    predecessor    TEXT    NOT NULL,
    awaited        TEXT    NOT NULL CHECK (awaited IN ('success', 'end', 'op')),
    PRIMARY KEY (scope_id, repository_id, job_id, predecessor)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS job_successors ON job_predecessors (scope_id, repository_id, predecessor, awaited);

CREATE TRIGGER IF NOT EXISTS awaited_op_comes AFTER INSERT ON agent_oplog WHEN NEW.accepted = 1
BEGIN
    UPDATE jobs SET waits = waits - 1
    WHERE scope_id = NEW.scope_id AND repository_id = NEW.repository_id AND state = 'pending' AND waits > 0
      AND job_id IN (
          SELECT job_id FROM job_predecessors
          WHERE scope_id = NEW.scope_id AND repository_id = NEW.repository_id AND predecessor = NEW.op_id
            AND awaited = 'op');
END;

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

CREATE TABLE IF NOT EXISTS job_kinds (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    is_paused     INTEGER NOT NULL DEFAULT 0,
    max_running   INTEGER,
    rate          INTEGER,
    rate_ms       INTEGER,
    lease_ms      INTEGER,
    is_audited    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (scope_id, repository_id, kind),
    CHECK ((rate IS NULL) = (rate_ms IS NULL))
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS job_claims (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    claimed_ms    INTEGER NOT NULL,
    job_id        TEXT    NOT NULL,
    claim_token   INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, kind, claimed_ms, job_id, claim_token)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS job_drains (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,
    since_ms      INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS job_notes (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    claim_token   INTEGER NOT NULL,
    progress      REAL,
    message       TEXT,
    checkpoint    TEXT,
    noted_ms      INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, job_id)
) WITHOUT ROWID;

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

-- if-missing: job_logs.n
INSERT INTO job_logs (scope_id, repository_id, job_id, n, claim_token, stream, text, logged_ms)
SELECT scope_id, repository_id, job_id,
    row_number() OVER (PARTITION BY scope_id, repository_id, job_id ORDER BY id),
    claim_token, stream, text, logged_ms
FROM job_logs_before;
-- if-missing: job_logs.n
DROP TABLE job_logs_before;

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

CREATE TABLE IF NOT EXISTS job_artifacts (
    id            INTEGER PRIMARY KEY,
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    hash          TEXT    NOT NULL,
    size          INTEGER NOT NULL CHECK (size >= 0),
    type          TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,
    body          TEXT,
    created_ms    INTEGER NOT NULL,
    UNIQUE (scope_id, repository_id, hash)
);

CREATE TABLE IF NOT EXISTS tempo_policies (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    anchor_ms     INTEGER NOT NULL,
    policy_hash   TEXT    NOT NULL,
    cluster_id    TEXT    NOT NULL,
    tempo_bpm     REAL    NOT NULL,
    bar_len_beats INTEGER NOT NULL,
    first_bar     INTEGER NOT NULL,
    document      TEXT    NOT NULL,
    reason        TEXT    NOT NULL,
    op_id         TEXT    NOT NULL,
    hlc           TEXT    NOT NULL,
    announced_ms  INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, anchor_ms)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS agent_oplog_of_tempo ON agent_oplog (scope_id, repository_id, id)
WHERE kind = 'TempoDecision';

CREATE TABLE IF NOT EXISTS beat_pulses (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    node_id       TEXT    NOT NULL,
    document      TEXT    NOT NULL,
    tempo_bpm     REAL    NOT NULL,
    bar_len_beats INTEGER NOT NULL,
    anchor_ms     INTEGER NOT NULL,
    hlc           TEXT    NOT NULL,
    PRIMARY KEY (scope_id, repository_id, node_id)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS status_claims (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    window_ms     INTEGER NOT NULL,
    agent_id      TEXT    NOT NULL,
    task_id       TEXT    NOT NULL,
    epoch_ms      INTEGER NOT NULL,
    beat_index    INTEGER NOT NULL,
    state         TEXT    NOT NULL CHECK (
        state IN ('planning', 'executing', 'waiting', 'review', 'done', 'failed')
    ),
    wait_for      TEXT    NOT NULL DEFAULT '[]',
    beats_left    INTEGER,
    progress      REAL,
    notes         TEXT    NOT NULL DEFAULT '',
    overran       INTEGER NOT NULL DEFAULT 0,
    began_ms      INTEGER NOT NULL,
    useful_ms     INTEGER,
    node_id       TEXT    NOT NULL,
    hlc           TEXT    NOT NULL,
    serial        INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, window_ms, agent_id, task_id, epoch_ms)
) WITHOUT ROWID;

CREATE UNIQUE INDEX IF NOT EXISTS status_claims_serial ON status_claims (scope_id, repository_id, serial);

CREATE TABLE IF NOT EXISTS bar_reports (
    scope_id       TEXT    NOT NULL,
    repository_id  TEXT    NOT NULL,
    window_ms      INTEGER NOT NULL,
    revision       INTEGER NOT NULL,
    window_id      TEXT    NOT NULL,
    until_ms       INTEGER NOT NULL,
    is_missing     INTEGER NOT NULL DEFAULT 0,
    document       TEXT    NOT NULL,
    through_serial INTEGER NOT NULL,
    phrases        INTEGER NOT NULL,
    threads        INTEGER NOT NULL,
    node_id        TEXT    NOT NULL,
    hlc            TEXT    NOT NULL,
    reported_ms    INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, window_ms, revision)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS bar_reports_through ON bar_reports (scope_id, repository_id, through_serial);

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
    due_ms           INTEGER,
    closes_ms        INTEGER NOT NULL,
    ended_ms         INTEGER,
    answer_id        TEXT,
    PRIMARY KEY (scope_id, repository_id, thread_id)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS help_threads_open ON help_threads (scope_id, repository_id, closes_ms)
    WHERE ended_ms IS NULL;
CREATE INDEX IF NOT EXISTS help_threads_ended ON help_threads (scope_id, repository_id, ended_ms)
    WHERE ended_ms IS NOT NULL;

CREATE TABLE IF NOT EXISTS phrase_ends (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    phrase_id     TEXT    NOT NULL,
    agent_id      TEXT    NOT NULL,
    task_id       TEXT    NOT NULL,
    job_id        TEXT,
    account       TEXT    NOT NULL DEFAULT '',
    attempt       INTEGER NOT NULL,
    outcome       TEXT    NOT NULL CHECK (outcome IN ('done', 'degraded', 'deferred', 'failed')),
    beats         TEXT    NOT NULL,
    waited        TEXT    NOT NULL,
    overruns      INTEGER NOT NULL,
    first_useful_ms INTEGER,
    resources     TEXT    NOT NULL,
    bu            REAL    NOT NULL,
    cost          REAL    NOT NULL,
    note          TEXT    NOT NULL DEFAULT '',
    window_ms     INTEGER NOT NULL,
    began_ms      INTEGER NOT NULL,
    ended_ms      INTEGER NOT NULL,
    node_id       TEXT    NOT NULL,
    hlc           TEXT    NOT NULL,
    PRIMARY KEY (scope_id, repository_id, phrase_id)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS phrase_ends_of_window ON phrase_ends (scope_id, repository_id, window_ms);
CREATE INDEX IF NOT EXISTS phrase_ends_of_agent ON phrase_ends (scope_id, repository_id, agent_id, ended_ms, bu);
CREATE INDEX IF NOT EXISTS phrase_ends_of_job ON phrase_ends (scope_id, repository_id, job_id, began_ms, bu);

CREATE TABLE IF NOT EXISTS phrase_begins (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    phrase_id     TEXT    NOT NULL,
    claim_token   INTEGER NOT NULL,
    agent_id      TEXT    NOT NULL,
    account       TEXT    NOT NULL,
    role          TEXT    NOT NULL,
    attempt       INTEGER NOT NULL,
    began_ms      INTEGER NOT NULL,
    lease_until_ms INTEGER,
    PRIMARY KEY (scope_id, repository_id, job_id, phrase_id)
) WITHOUT ROWID;

CREATE TRIGGER IF NOT EXISTS phrase_loses_its_lease AFTER UPDATE OF state ON jobs
WHEN OLD.lease_until_ms IS NOT NULL AND NEW.lease_until_ms IS NULL AND NEW.state <> 'succeeded'
BEGIN
    UPDATE phrase_begins SET lease_until_ms = OLD.lease_until_ms
    WHERE scope_id = OLD.scope_id AND repository_id = OLD.repository_id AND job_id = OLD.job_id
      AND claim_token = OLD.claim_token;
END;

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

CREATE TABLE IF NOT EXISTS budgets (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    subject       TEXT    NOT NULL,
    document      TEXT    NOT NULL,
    since_ms      INTEGER NOT NULL,
    hlc           TEXT    NOT NULL,
    spent_bu      REAL    NOT NULL DEFAULT 0,
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
