"""Witness tables: triggers in the database that record every transition of a row as it happens.

Notes of nodes may come late or never. A witness row is written in the transaction of the transition, with the
time by the database's clock; the order of rows is the order of transitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from proof import tables
from vox_mesh.store.schema.statements import NOW_MS
from vox_mesh.store.schema.unexpected import declare_triggers


@dataclass(frozen=True, slots=True)
class Witness:
    """The triggers that watch one table."""

    name: str
    """The table that they write."""
    watched: str
    copied: tuple[str, ...]
    """The columns that they copy, as of after the change."""
    moves: tuple[str, ...]
    """The columns whose change counts as a transition; none: every change does."""
    actions: tuple[str, ...] = ("insert", "update", "delete")
    has_log_position: bool = False
    """Whether they record, as `log_id`, the last entry of the log at that moment."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the witness table."""
        return "id", "at_ms", "deed", *self.copied, *(("log_id",) if self.has_log_position else ())

    def statements(self) -> Iterator[str]:
        """Yield the statements that install it; idempotent."""
        columns = ", ".join(self.columns[3:])
        yield (
            f"CREATE TABLE IF NOT EXISTS {self.name} "
            f"(id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, deed TEXT NOT NULL, {columns})"
        )
        for action in self.actions:
            yield (
                f"CREATE TRIGGER IF NOT EXISTS {self.name}_{action} AFTER {action.upper()} ON {self.watched} "
                f"{self._condition(action)}BEGIN {self._record(action)}; END"
            )

    def _condition(self, action: str) -> str:
        if action != "update" or not self.moves:
            return ""
        return f"WHEN {' OR '.join(f'NEW.{each} IS NOT OLD.{each}' for each in self.moves)} "

    def _record(self, action: str) -> str:
        row = "OLD" if action == "delete" else "NEW"
        values = [NOW_MS, f"'{action}'", *(f"{row}.{each}" for each in self.copied)]
        if self.has_log_position:
            values.append("(SELECT coalesce(max(id), 0) FROM agent_oplog)")
        return f"INSERT INTO {self.name} ({', '.join(self.columns[1:])}) VALUES ({', '.join(values)})"


JOB_MOVES: Final = Witness(
    "proof_job_moves",
    "jobs",
    ("job_id", "kind", "state", "claimer", "claim_token", "lease_until_ms", "waits", "last_op"),
    ("state", "claim_token", "lease_until_ms"),
)

MESSAGE_MOVES: Final = Witness(
    "proof_message_moves",
    "a2a_messages",
    (
        *("message_uuid", "sender_agent", "receiver_agent", "hlc", "expires_ms", "is_ordered"),
        *("state", "claim_owner", "claim_until_ms", "delivery_attempts", "not_before_ms"),
    ),
    ("state", "claim_owner", "claim_until_ms", "delivery_attempts", "not_before_ms"),
)

CRON_MOVES: Final = Witness(
    "proof_cron_moves",
    "job_crons",
    ("name", "expression", "timezone", "next_ms", "last_ms", "last_job"),
    ("next_ms", "last_ms"),
)

LOG_EDITS: Final = Witness(
    "proof_log_edits", "agent_oplog", ("node_id", "seq", "op_id", "hash"), (), ("update", "delete")
)
"""The log is append-only."""

SENDS: Final = Witness(
    *("proof_sends", "a2a_messages", ("message_uuid", "sender_agent", "receiver_agent"), (), ("insert",)),
    has_log_position=True,
)

ACQUISITIONS: Final = Witness(
    *("proof_acquisitions", "distributed_locks", ("lock_key", "holder_agent", "fence_token")),
    *(("fence_token",), ("insert", "update")),
    has_log_position=True,
)

TAKES: Final = Witness(
    *("proof_takes", "job_takes", ("job_id", "agent_id", "grant_id", "claim_token")),
    *(("claim_token",), ("insert", "update")),
    has_log_position=True,
)

WITNESSES: Final = (JOB_MOVES, MESSAGE_MOVES, CRON_MOVES, LOG_EDITS, SENDS, ACQUISITIONS, TAKES)

INSTALL: Final[tuple[str, ...]] = (
    *tables.CREATE,
    *(statement for each in WITNESSES for statement in each.statements()),
)
"""Creates the witnesses and the workloads' tables. Run it when the mesh's tables exist and are empty."""

# A process that does not import this module refuses a database with these triggers.
declare_triggers(sql for sql in INSTALL if sql.startswith("CREATE TRIGGER"))
