-- Who wrote a checkpoint: the op that started the attempt, and the signature of its worker. Older nodes write none, and
-- what they write is not resumed from.
-- if-missing: job_notes.start_op
ALTER TABLE job_notes ADD COLUMN start_op TEXT;

-- if-missing: job_notes.signature
ALTER TABLE job_notes ADD COLUMN signature TEXT;
