-- An attempt that is lost with its worker is found from its job: nothing is written when one begins.
DROP TRIGGER IF EXISTS phrase_loses_its_lease;
CREATE TRIGGER phrase_loses_its_lease AFTER UPDATE OF state ON jobs
WHEN OLD.lease_until_ms IS NOT NULL AND NEW.lease_until_ms IS NULL AND NEW.state <> 'succeeded'
BEGIN
    UPDATE phrase_begins SET lease_until_ms = OLD.lease_until_ms
    WHERE scope_id = OLD.scope_id AND repository_id = OLD.repository_id AND job_id = OLD.job_id
      AND claim_token = OLD.claim_token;
    INSERT INTO phrase_begins (
        scope_id, repository_id, job_id, phrase_id, claim_token, agent_id, account, role, attempt, began_ms,
        lease_until_ms)
    SELECT OLD.scope_id, OLD.repository_id, OLD.job_id, (
            SELECT group_concat(substr('0123456789ABCDEFGHJKMNPQRSTVWXYZ', (OLD.claim_token >> value & 31) + 1, 1), '')
            FROM (SELECT value FROM json_each('[45,40,35,30,25,20,15,10,5,0]') ORDER BY key)
        ) || upper(substr(OLD.job_id, 1, 16)), OLD.claim_token, a.agent_id, coalesce(a.core ->> '$.budget.charge_to', ''),
        OLD.kind, OLD.failures + OLD.interruptions + 1, OLD.started_ms, OLD.lease_until_ms
    FROM (
        SELECT iif(json_valid(OLD.manifest), OLD.manifest, '{}') AS core, coalesce((
            SELECT h.agent_id FROM mesh_heartbeats AS h
            WHERE h.scope_id = OLD.scope_id AND h.repository_id = OLD.repository_id AND h.node_id = OLD.claimer
        ), OLD.claimer) AS agent_id
    ) AS a
    WHERE OLD.started_ms IS NOT NULL
      AND (a.core ->> '$.score' IS NOT NULL OR a.core ->> '$.budget' IS NOT NULL OR EXISTS (
        SELECT 1 FROM budgets AS b
        WHERE b.scope_id = OLD.scope_id AND b.repository_id = OLD.repository_id AND b.subject = 'agent:' || a.agent_id))
      AND NOT EXISTS (
        SELECT 1 FROM phrase_begins AS p
        WHERE p.scope_id = OLD.scope_id AND p.repository_id = OLD.repository_id AND p.job_id = OLD.job_id
          AND p.claim_token = OLD.claim_token)
      AND NOT EXISTS (
        SELECT 1 FROM phrase_ends AS p INDEXED BY phrase_ends_of_job
        WHERE p.scope_id = OLD.scope_id AND p.repository_id = OLD.repository_id AND p.job_id = OLD.job_id
          AND p.began_ms >= OLD.started_ms)
    ON CONFLICT DO NOTHING;
END;
