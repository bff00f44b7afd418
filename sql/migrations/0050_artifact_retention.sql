-- Retention of artifacts. Nodes of earlier versions write no `used_ms`: nothing is pruned while one of them lives.
-- if-missing: job_artifacts.used_ms
ALTER TABLE job_artifacts ADD COLUMN used_ms INTEGER;

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

-- if-missing: retention_policies.max_bytes
ALTER TABLE retention_policies ADD COLUMN max_bytes INTEGER;
