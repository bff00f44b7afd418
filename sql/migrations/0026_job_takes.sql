-- The jobs that nodes have claimed on behalf of agents. Older nodes claim for themselves only.
CREATE TABLE IF NOT EXISTS job_takes (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    claim_token   INTEGER NOT NULL,
    agent_id      TEXT    NOT NULL,
    grant_id      TEXT,
    lease_ms      INTEGER NOT NULL,
    artifacts     TEXT    NOT NULL DEFAULT '[]',
    PRIMARY KEY (scope_id, repository_id, job_id)
) WITHOUT ROWID;
