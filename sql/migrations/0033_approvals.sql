-- What agents have asked for, and what became of it. The signed ops in the log say what was asked, and who approved it.
-- Older nodes refuse what asks for an approval.
CREATE TABLE IF NOT EXISTS approvals (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    approval_id   TEXT    NOT NULL,         -- the op that asks
    agent_id      TEXT    NOT NULL,
    digest        TEXT    NOT NULL,         -- of what is asked
    expires_ms    INTEGER NOT NULL,
    state         TEXT    NOT NULL,         -- pending, approved, denied, applied, refused
    decision_op   TEXT,                     -- the op that approved or denied it
    decided_ms    INTEGER,
    PRIMARY KEY (scope_id, repository_id, approval_id)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS approvals_by_expiry ON approvals (scope_id, repository_id, expires_ms);

-- The ops about approvals, in order.
CREATE INDEX IF NOT EXISTS agent_oplog_of_approvals ON agent_oplog (scope_id, repository_id, id)
WHERE kind IN ('RequestApproval', 'Approve', 'Deny');
