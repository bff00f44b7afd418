-- What the jobs that were scheduled by a grant with a budget may cost. Older nodes do not count it.
-- if-missing: grants.reserved_mbu
ALTER TABLE grants ADD COLUMN reserved_mbu INTEGER NOT NULL DEFAULT 0;
