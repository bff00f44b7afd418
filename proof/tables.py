"""Tables that only the workloads use."""

from __future__ import annotations

from typing import Final

EFFECTS: Final = "proof_effects"
"""A row for each part of each effect. Only the idempotency key prevents duplicates."""

GUARDED: Final = "proof_guarded"
"""Rows written under a lock, in the order of commits."""

WRITES: Final = "proof_writes"
"""The last small write of each node."""

CREATE: Final = (
    f"CREATE TABLE IF NOT EXISTS {EFFECTS} "
    "(id INTEGER PRIMARY KEY, effect TEXT NOT NULL, part INTEGER NOT NULL, player TEXT NOT NULL, "
    "number INTEGER NOT NULL)",
    f"CREATE INDEX IF NOT EXISTS {EFFECTS}_by_player ON {EFFECTS} (player, number)",
    f"CREATE TABLE IF NOT EXISTS {GUARDED} "
    "(id INTEGER PRIMARY KEY, cell TEXT NOT NULL, token INTEGER NOT NULL, player TEXT NOT NULL)",
    f"CREATE TABLE IF NOT EXISTS {WRITES} "
    "(player TEXT PRIMARY KEY, life INTEGER NOT NULL, number INTEGER NOT NULL)",
)
"""Idempotent."""
