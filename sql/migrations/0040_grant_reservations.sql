-- What jobs have reserved of the budgets of grants, until it is settled. What older nodes reserve is not returned, and
-- the jobs that they end are settled by other nodes.
CREATE TABLE IF NOT EXISTS grant_reservations (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    grant_id      TEXT    NOT NULL,
    reserved_mbu  INTEGER NOT NULL,      -- what the job may cost, in thousandths of beats
    PRIMARY KEY (scope_id, repository_id, job_id, grant_id)
) WITHOUT ROWID;
