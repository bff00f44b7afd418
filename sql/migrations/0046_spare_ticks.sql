-- Idle nodes of a large mesh send fewer heartbeats, once all live nodes know this version.
-- if-missing: mesh_heartbeats.spare_ms
ALTER TABLE mesh_heartbeats ADD COLUMN spare_ms INTEGER NOT NULL DEFAULT 0;
