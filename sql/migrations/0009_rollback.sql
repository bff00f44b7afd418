-- The store goes back in time. `store_epochs` tells nodes that it did; `node_incarnations.beats` is how they notice.
-- Fencing tokens carry the time from now on: the generation, from which nodes of the version before take theirs too,
-- is raised to it, so that all tokens of a key go on rising whichever node hands them out.

-- if-missing: node_incarnations.beats
ALTER TABLE node_incarnations ADD COLUMN beats INTEGER NOT NULL DEFAULT 0;

CREATE TABLE IF NOT EXISTS store_epochs (
    scope_id      TEXT    NOT NULL,
    repository_id TEXT    NOT NULL,
    epoch         INTEGER NOT NULL,
    op_id         TEXT    NOT NULL,  -- of `StoreRolledBack`; of epoch 0 and of a restore, only an id
    node_id       TEXT    NOT NULL,  -- who found out; of a restore, empty
    detected_ms   INTEGER NOT NULL,
    detail        TEXT    NOT NULL,  -- the payload of the op: what was lost, as far as that is known
    PRIMARY KEY (scope_id, repository_id, epoch)
) WITHOUT ROWID;

UPDATE lock_generations SET generation = max(generation, RAW_MS << 10);
