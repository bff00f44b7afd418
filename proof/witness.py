"""A witness in the database itself: triggers that write down every move of what is judged, when it is made.

What players tell may come late or never; a row here came with the move, in its transaction, by the clock of
the database. The order of rows is that of the moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from proof import tables
from vox_mesh.store.schema.statements import NOW_MS


@dataclass(frozen=True, slots=True)
class Witness:
    """Who watches one table."""

    name: str
    """The table that it writes."""
    watched: str
    copied: tuple[str, ...]
    """The columns that it takes over, as they are after the move."""
    moves: tuple[str, ...]
    """Those among them that make a change a move; none: every change is one."""
    actions: tuple[str, ...] = ("insert", "update", "delete")

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the table that it writes."""
        return "id", "at_ms", "deed", *self.copied

    def statements(self) -> Iterator[str]:
        """What installs it; harmless if it is there already."""
        yield (
            f"CREATE TABLE IF NOT EXISTS {self.name} "
            f"(id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, deed TEXT NOT NULL, {', '.join(self.copied)})"
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
        values = ", ".join(f"{row}.{each}" for each in self.copied)
        return (
            f"INSERT INTO {self.name} ({', '.join(self.columns[1:])}) VALUES ({NOW_MS}, '{action}', {values})"
        )


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
        *("message_uuid", "sender_agent", "receiver_agent", "hlc", "expires_ms"),
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
"""The log is only ever added to."""

WITNESSES: Final = (JOB_MOVES, MESSAGE_MOVES, CRON_MOVES, LOG_EDITS)

INSTALL: Final[tuple[str, ...]] = (
    *tables.CREATE,
    *(statement for each in WITNESSES for statement in each.statements()),
)
"""And the workloads' tables. To be run when those of the mesh are there, and nothing is in them."""
