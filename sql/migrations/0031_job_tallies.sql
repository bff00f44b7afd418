-- Jobs without a record of their own in the rhythm are counted. Older nodes count none, and report none.
-- Sums over the jobs that ended in a bar and have no row in `phrase_ends`: those without a score or budget, and those
-- with a score that began and succeeded within a beat.
CREATE TABLE IF NOT EXISTS job_tallies (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    window_ms     INTEGER NOT NULL,  -- the bar in which they ended
    agent_id      TEXT    NOT NULL,
    is_scored     INTEGER NOT NULL,
    done          INTEGER NOT NULL,
    failed        INTEGER NOT NULL,
    done_beats    INTEGER NOT NULL,  -- the beats in which jobs ran that are done
    failed_beats  INTEGER NOT NULL,
    bu            REAL    NOT NULL,
    cost          REAL    NOT NULL,
    cpu_sec       REAL    NOT NULL,
    mem_gbs       REAL    NOT NULL,
    io_mb         REAL    NOT NULL,
    delays        TEXT    NOT NULL,  -- JSON: how many jobs were done after how long, by the class of the delay
    PRIMARY KEY (scope_id, repository_id, window_ms, agent_id, is_scored)
) WITHOUT ROWID;

-- if-missing: bar_reports.jobs
ALTER TABLE bar_reports ADD COLUMN jobs INTEGER NOT NULL DEFAULT 0;
