-- The processes that session locks last for. Older nodes renew none: such locks end with their leases there.
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
