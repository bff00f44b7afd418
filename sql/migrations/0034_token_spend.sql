-- Tokens and money in budgets. Older nodes neither reserve nor charge them.
-- What agents and accounts may spend on language models: one row for each such limit of a budget.
CREATE TABLE IF NOT EXISTS spend_limits (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    subject       TEXT    NOT NULL,  -- of the budget
    resource      TEXT    NOT NULL,  -- tokens, input_tokens, output_tokens, or money:CURRENCY
    most          INTEGER NOT NULL,  -- tokens, or millionths of the currency
    reserve       INTEGER NOT NULL,  -- what an attempt reserves whose job says nothing about it
    spent         INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (scope_id, repository_id, subject, resource)
) WITHOUT ROWID;

-- What running attempts have reserved of these limits. A row counts while its job is held under its claim token.
CREATE TABLE IF NOT EXISTS spend_reservations (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    subject       TEXT    NOT NULL,
    resource      TEXT    NOT NULL,
    job_id        TEXT    NOT NULL,
    claim_token   INTEGER NOT NULL,
    amount        INTEGER NOT NULL,
    PRIMARY KEY (scope_id, repository_id, subject, resource, job_id)
) WITHOUT ROWID;

-- The tokens that jobs have used, and their price: sums over the attempts that ended in a bar.
CREATE TABLE IF NOT EXISTS token_spend (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    agent_id      TEXT    NOT NULL,
    window_ms     INTEGER NOT NULL,  -- the bar in which they were charged
    account       TEXT    NOT NULL,
    kind          TEXT    NOT NULL,
    model         TEXT    NOT NULL,
    currency      TEXT    NOT NULL,  -- empty: the node knew no prices
    input_tokens  INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    micros        INTEGER NOT NULL,  -- millionths of the currency
    unpriced      INTEGER NOT NULL,  -- the tokens among them whose price was not known
    charged_ms    INTEGER NOT NULL,  -- the last of the charges
    PRIMARY KEY (scope_id, repository_id, agent_id, window_ms, account, kind, model, currency)
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS token_spend_of_window ON token_spend (scope_id, repository_id, window_ms);
