-- What was done by grants with rates and limits on open items. Older nodes count nothing.
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
