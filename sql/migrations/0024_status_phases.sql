-- The phase and the score of a task, and when its state began, with each status claim. Older nodes write none of them.
-- if-missing: status_claims.phase
ALTER TABLE status_claims ADD COLUMN phase TEXT;

-- if-missing: status_claims.score
ALTER TABLE status_claims ADD COLUMN score TEXT;

-- if-missing: status_claims.since_ms
ALTER TABLE status_claims ADD COLUMN since_ms INTEGER;
