-- Leadership: the holder of an office of the mesh.

-- name: leader
-- ?4 is the time, as the caller knows it.
SELECT holder_node, fence_token, expires_at FROM distributed_locks
WHERE scope_id = ?1 AND repository_id = ?2 AND lock_key = ?3 AND request_id <> '' AND expires_at > ?4
