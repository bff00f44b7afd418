-- Rules: jobs that are scheduled when ops are logged.
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

-- The ops about rules, in order: a rule is fired only as they have it.
CREATE INDEX IF NOT EXISTS agent_oplog_of_rules ON agent_oplog (scope_id, repository_id, hlc)
WHERE kind IN ('AddRule', 'RemoveRule');
