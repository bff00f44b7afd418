-- Attempts that ended with their worker or their lease, apart from the failed ones. Older nodes still count those as
-- failed.
-- if-missing: jobs.max_interruptions
ALTER TABLE jobs ADD COLUMN max_interruptions INTEGER NOT NULL DEFAULT 5;

-- if-missing: jobs.interruptions
ALTER TABLE jobs ADD COLUMN interruptions INTEGER NOT NULL DEFAULT 0;
