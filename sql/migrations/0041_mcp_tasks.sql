-- Tasks of MCP clients: by which a client reads, answers and cancels a job that it has submitted. Older nodes serve none.
CREATE TABLE IF NOT EXISTS mcp_tasks (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    task_hash     TEXT    NOT NULL,  -- of the task's id, which only the client has
    job_id        TEXT    NOT NULL,
    agent_id      TEXT    NOT NULL,  -- the agent that has submitted the job
    approval_id   TEXT,              -- the approval that the job waits for, or has waited for
    created_ms    INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, task_hash)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS mcp_tasks_of_agent ON mcp_tasks (scope_id, repository_id, agent_id, created_ms);
CREATE INDEX IF NOT EXISTS mcp_tasks_by_age ON mcp_tasks (scope_id, repository_id, created_ms);
