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
