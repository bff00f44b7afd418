-- Retention: how long rows are kept, and how far pruning is. Older nodes prune nothing by it.
CREATE TABLE IF NOT EXISTS retention_policies (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    subject       TEXT    NOT NULL,
    kind          TEXT    NOT NULL,  -- empty: all kinds without a policy of their own
    age_ms        INTEGER,           -- NULL: kept whatever their age
    max_rows      INTEGER,           -- NULL: any number
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
