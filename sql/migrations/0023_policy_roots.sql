-- The policy roots that a worker allows. Older nodes write none, and allow any.
-- if-missing: mesh_heartbeats.policy_roots
ALTER TABLE mesh_heartbeats ADD COLUMN policy_roots TEXT;
