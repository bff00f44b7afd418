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
