-- The log: appended to by its authors alone, and read in commit order or chain by chain.

-- name: refuse_unless_current
-- A newer incarnation of this node has begun: whoever sends this is to be heard no more.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM node_incarnations
    WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND incarnation = ?4
)

-- name: refuse_unless_current_at
-- The same, and the chain ends with the entry that the next one was linked to.
INSERT INTO refusals (reason) SELECT 'refused' WHERE NOT EXISTS (
    SELECT 1 FROM node_incarnations
    WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND incarnation = ?4
) OR ?5 IS NOT (
    SELECT hash FROM agent_oplog WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3
    ORDER BY seq DESC LIMIT 1
)

-- name: refuse_unless_at
-- For a chain without incarnations: that of commands.
INSERT INTO refusals (reason) SELECT 'refused' WHERE ?4 IS NOT (
    SELECT hash FROM agent_oplog WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3
    ORDER BY seq DESC LIMIT 1
)

-- name: record_key
-- With the first entry of a chain: whose it is.
INSERT INTO node_keys (scope_id, repository_id, node_id, from_seq, public_key) VALUES (?1, ?2, ?3, 1, ?4)
ON CONFLICT DO NOTHING

-- name: append
-- The entries of a request, after its scripts: what became of each is beside its key. An op that is in
-- the log already fails, and with it the request.
INSERT INTO agent_oplog (
    scope_id, repository_id, node_id, seq, op_id, kind, hlc, causal_deps, payload, prev, hash, signature,
    accepted, reason, result
)
SELECT ?1, ?2, ?3, value ->> 'seq', value ->> 'op_id', value ->> 'kind', value ->> 'hlc', value ->> 'deps',
    value ->> 'payload', value ->> 'prev', value ->> 'hash', value ->> 'signature',
    failed_statement IS NULL,
    CASE
        WHEN failed_statement IS NULL THEN value ->> 'remark'
        ELSE coalesce(value -> 'refusals' ->> failed_statement, 'failed')
    END,
    CASE WHEN failed_statement IS NULL AND value ->> 'columns' IS NOT NULL THEN (
        SELECT json_group_object(name.value, CASE typeof(c) WHEN 'blob' THEN hex(c) ELSE c END)
        FROM json_each(entry.value -> 'columns') AS name, (
            SELECT 0 AS k, c0 AS c, n FROM script_answers AS a WHERE a.scope_id = ?1 AND a.repository_id = ?2
                AND a.script_key = entry.value ->> 'op_id' AND n = 1
        ) AS cell WHERE cell.k = name.key
    ) END
FROM json_each(?4) AS entry LEFT JOIN script_results ON script_results.scope_id = ?1
    AND script_results.repository_id = ?2 AND script_key = value ->> 'op_id'
ORDER BY entry.key
RETURNING id, seq, accepted, reason, result, NOW_MS

-- name: last_seal
SELECT seq FROM agent_oplog WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND kind = 'Seal'
ORDER BY seq DESC LIMIT 1
