"""The contents of the database at the end of a run, written into the history."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from proof import tables
from proof.history import History, Recorder
from proof.witness import WITNESSES
from vox_mesh.errors import MeshError
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.store.schema.statements import NOW_MS

Ask = Callable[[str], Awaitable[list[dict[str, Any]]]]
"""Run one SELECT against the database itself."""

Row = dict[str, Any]

_SHOWN: Final = 5
_PAGE: Final = 500
"""Rows in one response: a server limits a response to 10 MB."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that checks read."""

    name: str
    key: tuple[str, ...]
    """The columns by which its rows are ordered."""
    others: tuple[str, ...]

    def page(self, after: Row | None) -> str:
        """Return the query for the next page, after this row."""
        order, columns = ", ".join(self.key), ", ".join(self.key + self.others)
        beyond = "" if after is None else f"WHERE ({order}) > ({self._place(after)}) "
        return f"SELECT {columns} FROM {self.name} {beyond}ORDER BY {order} LIMIT {_PAGE}"

    def _place(self, row: Row) -> str:
        return ", ".join(_literal(row[each]) for each in self.key)


TABLES: Final = (
    Table(
        "jobs",
        ("id",),
        (
            *("job_id", "ulid", "kind", "state", "priority", "waits", "claimer", "claim_token", "attempts"),
            *(
                "failures",
                "max_attempts",
                "interruptions",
                "max_interruptions",
                "created_ms",
                "started_ms",
                "ended_ms",
                "reason",
                "last_op",
                "binding",
            ),
            "manifest",
        ),
    ),
    Table("spend_limits", ("subject", "resource"), ("most", "reserve", "spent")),
    Table("mcp_tasks", ("scope_id", "repository_id", "task_hash"), ("job_id", "created_ms")),
    Table("job_crons", ("name",), ("next_ms", "last_ms", "last_job")),
    Table(
        "a2a_messages",
        ("id",),
        (
            *("message_uuid", "sender_agent", "receiver_agent", "payload", "expires_ms", "max_attempts"),
            *("hlc", "state", "claim_owner", "delivery_attempts", "ended_ms", "ended_reason"),
        ),
    ),
    Table("agent_oplog", ("id",), LogEntry._fields[1:]),
    Table("admitted_agents", ("scope_id", "agent_id"), ()),
    Table("grants", ("grant_id",), ("agent_id", "parent_id", "reserved_mbu")),
    Table("phrase_ends", ("phrase_id",), ("job_id", "bu")),
    Table("phrase_begins", ("job_id", "phrase_id"), ()),
    Table("memories", ("memory_key",), ("agent_id", "content", "importance", "written_at")),
    Table("occ_conflicts", ("conflict_id",), ("table_name", "row_key", "strategy", "state")),
    Table("distributed_locks", ("lock_key",), ("holder_node", "holder_agent", "fence_token", "expires_at")),
    Table("mesh_heartbeats", ("node_id",), ("incarnation", "last_seen_ms", "left_ms", "tick_ms")),
    Table("tempo_policies", ("anchor_ms",), ("policy_hash", "tempo_bpm", "bar_len_beats", "first_bar")),
    Table("bar_reports", ("window_ms", "revision"), ("window_id", "until_ms", "is_missing", "node_id")),
    Table(tables.EFFECTS, ("id",), ("effect", "part", "player", "number")),
    Table(tables.GUARDED, ("id",), ("cell", "token", "player")),
    Table(tables.WRITES, ("player",), ("life", "number")),
    *(Table(each.name, ("id",), each.columns[1:]) for each in WITNESSES),
)


async def record_final_state(ask: Ask, recorder: Recorder) -> None:
    """Write the rows of all tables, and the result of the integrity check, into the history."""
    for table in TABLES:
        async for row in _rows(ask, table):
            recorder.note("final", table=table.name, row=row)
    (clock,) = await ask(f"SELECT {NOW_MS} AS now_ms")
    recorder.note("final.clock", **clock)
    await _note_integrity(ask, recorder)


async def _rows(ask: Ask, table: Table) -> AsyncIterator[Row]:
    last: Row | None = None
    while rows := await ask(table.page(last)):
        for row in rows:
            yield row
        last = rows[-1]
        if len(rows) < _PAGE:
            return


async def _note_integrity(ask: Ask, recorder: Recorder) -> None:
    try:
        rows = await ask("PRAGMA integrity_check")
    except MeshError as error:  # not every server supports it
        recorder.note("final.integrity", ok=None, said=[str(error)])
        return
    answers = [str(value) for row in rows for value in row.values()]
    recorder.note("final.integrity", ok=answers == ["ok"], said=answers[:_SHOWN])


def final_rows(history: History, table: str) -> list[Row]:
    """Return the rows of a table at the end of the run."""
    return [event.data["row"] for event in history.notes("final") if event.data["table"] == table]


def grouped(rows: Iterable[Row], column: str) -> dict[Any, list[Row]]:
    """Group rows by a column, in their order."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups


def _literal(value: Any) -> str:
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"
