-- Signatures of status claims. Older nodes sign none; their claims are not shown as the status of tasks.
-- if-missing: status_claims.batch
ALTER TABLE status_claims ADD COLUMN batch INTEGER;

CREATE TABLE IF NOT EXISTS status_signatures (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    batch         INTEGER NOT NULL,
    node_id       TEXT    NOT NULL,
    hashes        TEXT    NOT NULL,
    signature     TEXT    NOT NULL,
    PRIMARY KEY (scope_id, repository_id, batch, node_id)
) WITHOUT ROWID;
