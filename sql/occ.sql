-- Optimistic writes, and the conflicts that are left for review. The statements on a caller's own table are built
-- in code, from names that these found in that table.

-- name: columns
SELECT c.name AS column_name, c.type AS type, c.pk AS key_position
FROM pragma_table_list AS t JOIN pragma_table_info(t.name) AS c
WHERE t.schema = 'main' AND t.type = 'table' AND t.name = ?1 ORDER BY c.cid

-- name: unique_columns
-- An index on an expression has columns without a name.
SELECT i.name AS index_name, c.name AS column_name
FROM pragma_index_list(?1) AS i JOIN pragma_index_info(i.name) AS c
WHERE i."unique" = 1 AND i.partial = 0 ORDER BY i.name, c.seqno

-- name: record
-- The condition that follows requires that the row is still the right side as it was read.
INSERT INTO occ_conflicts (
    scope_id, repository_id, conflict_id, table_name, row_key, base, "left", "right", left_node, left_agent,
    right_node, strategy, deferred_to, created_at
)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, NOW_ISO

-- name: beginning_with
SELECT conflict_id, table_name, row_key, base, "left", "right", left_node, left_agent, right_node, strategy,
    deferred_to, state, created_at, resolved_at, resolved_by, resolved_agent, resolution, reason
FROM occ_conflicts
WHERE scope_id = ?1 AND repository_id = ?2 AND conflict_id >= ?3 AND conflict_id < ?3 || '~'
ORDER BY conflict_id LIMIT 2

-- name: after
SELECT conflict_id, table_name, row_key, base, "left", "right", left_node, left_agent, right_node, strategy,
    deferred_to, state, created_at, resolved_at, resolved_by, resolved_agent, resolution, reason
FROM occ_conflicts
WHERE scope_id = ?1 AND repository_id = ?2 AND conflict_id > ?3 AND conflict_id NOT GLOB '*[^0-9A-Z]*'
  AND (?4 IS NULL OR state = ?4)
  AND (?5 IS NULL OR table_name = ?5)
ORDER BY conflict_id LIMIT ?6

-- name: marks
-- What a watch reads: open conflicts, and conflicts resolved since it began.
SELECT conflict_id, state FROM occ_conflicts
WHERE scope_id = ?1 AND repository_id = ?2 AND (state = 'open' OR resolved_at >= ?3) ORDER BY conflict_id

-- name: now
SELECT NOW_ISO

-- name: refuse_unless_open
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM occ_conflicts
    WHERE scope_id = ?1 AND repository_id = ?2 AND conflict_id = ?3 AND state = 'open'
)

-- name: resolve
UPDATE occ_conflicts SET
    state = 'resolved', resolved_at = NOW_ISO, resolved_by = ?4,
    resolved_agent = ?5, resolution = ?6, reason = ?7
WHERE scope_id = ?1 AND repository_id = ?2 AND conflict_id = ?3
