-- Scheduled backups: the mesh that they are of.

-- name: database
-- The id of epoch 0, which identifies the database and survives a restore.
SELECT op_id FROM store_epochs
WHERE scope_id = ?1 AND repository_id = ?2 AND epoch = 0 AND typeof(op_id) = 'text'

-- name: nodes
SELECT node_id FROM node_incarnations
WHERE scope_id = ?1 AND repository_id = ?2 AND typeof(node_id) = 'text'
