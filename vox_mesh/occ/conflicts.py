"""Conflicts: optimistic writes that were left for review, and their resolution."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import (
    AlreadyResolved,
    BadValue,
    MergeClash,
    NotGranted,
    NotKnown,
    Refused,
    RowMoved,
    TooLarge,
)
from vox_mesh.model.base.canonical import canonical, encode_row, row_of, row_text, show_row
from vox_mesh.model.occ.merge import Columns, changed_columns, three_way
from vox_mesh.model.oplog.op_names import RESOLVE
from vox_mesh.occ.tables import WRITTEN_AT, RowAddress
from vox_mesh.occ.versions import Versions, writer_of
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.store.acting import current_agent
from vox_mesh.store.rows import Row
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Statement, guard
from vox_mesh.store.store import Store

GONE: Final = "gone"
"""Used instead of a version if there is no row."""

_SQL: Final = named("occ")
_PAGE_SIZE: Final = 256
_MAX_SHOWN_CHARS: Final = 1_000
_NOT_OPEN: Final = "already_resolved"
_MOVED: Final = "row_moved"


class Take(StrEnum):
    """The side that a conflict is resolved to."""

    LEFT = "left"
    RIGHT = "right"
    MERGE = "merge"


@dataclass(frozen=True)
class Conflict:
    """A write in conflict: `left` is the row it wanted, `right` the row it found, `base` the row it had read.

    Without `base`, the write expected no row. Without `right`, the row was deleted.
    """

    conflict_id: str
    table_name: str
    row_key: dict[str, Any]
    base: dict[str, Any] | None
    left: dict[str, Any]
    right: dict[str, Any] | None
    left_node: str
    left_agent: str | None
    right_node: str | None
    strategy: str
    deferred_to: str | None
    state: str
    created_at: str
    resolved_at: str | None
    resolved_by: str | None
    resolved_agent: str | None
    resolution: str | None
    reason: str | None

    @property
    def is_open(self) -> bool:
        """Return whether it is not resolved yet."""
        return self.state == "open"

    @classmethod
    def from_row(cls, row: Row) -> Conflict:
        """Return the conflict that a row of the table describes."""
        values: dict[str, Any] = row.as_dict()
        for name in ("row_key", "base", "left", "right"):
            values[name] = None if values[name] is None else row_of(values[name])
        return cls(**values)


Page = list[Conflict]


class Resolution(NamedTuple):
    """How a conflict was resolved, and by which op; `written_at` is the row's new version, if any."""

    conflict_id: str
    op_id: str
    resolution: str
    written_at: str | None


class _Decision(NamedTuple):
    """The decision on a row: `values` are written over `over`; without any, the row stays."""

    name: str
    over: Columns | None
    values: dict[str, Any] | None


class Conflicts:
    """List and resolve conflicts."""

    def __init__(self, store: Store, versions: Versions, permits: Permits) -> None:
        self._permits = permits
        self._store = store
        self._versions = versions

    # --- reading ---------------------------------------------------------------------------------

    async def list(self, *, open_only: bool = False, table: str | None = None) -> list[Conflict]:
        """Return all conflicts, oldest first, or only the open ones, or those of one table."""
        return await self.after("", None, open_only=open_only, table=table)

    async def after(
        self, conflict_id: str, limit: int | None, *, open_only: bool = False, table: str | None = None
    ) -> Page:
        """Return up to `limit` conflicts recorded after this one."""
        found: Page = []
        last, page_size = conflict_id, _PAGE_SIZE
        state = "open" if open_only else None
        while limit is None or len(found) < limit:
            wanted = page_size if limit is None else min(page_size, limit - len(found))
            try:
                rows = await self._store.read(_SQL["after"], (*self._mesh, last, state, table, wanted))
            except TooLarge:  # rows may be large, and servers limit their answers
                if page_size == 1:
                    raise
                page_size //= 2
                continue
            found += map(Conflict.from_row, rows)
            if len(rows) < wanted:
                break
            last = found[-1].conflict_id
        return found

    async def find(self, conflict_id: str) -> Conflict:
        """Return the conflict with this id, or the only one whose id begins with it."""
        beginning = conflict_id.upper()
        if not (beginning.isascii() and beginning.isalnum()):
            raise BadValue(
                f"conflict id must be letters and digits, got {conflict_id!r}",
                hint="run `vox-mesh conflicts list` to see all ids",
            )
        rows = await self._store.read(_SQL["beginning_with"], (*self._mesh, beginning), fresh=True)
        if not rows:
            raise NotKnown(
                f"conflict {conflict_id} not found", hint="run `vox-mesh conflicts list` to see all ids"
            )
        if len(rows) > 1:
            raise BadValue(
                f"conflict {conflict_id} is ambiguous: several ids begin with it", hint="pass more of the id"
            )
        return Conflict.from_row(rows[0])

    async def read_columns(self, conflict_id: str, sides: Mapping[str, str]) -> dict[str, Any]:
        """Return the values of columns as the named side has them: `base` or `left`, for a resolution."""
        conflict = await self.find(conflict_id)
        rows = {"base": conflict.base or {}, "left": conflict.left}
        for name, side in sides.items():
            if name not in rows.get(side, {}):
                raise BadValue(
                    f"column must be one of the side {side}, got {name!r}", hint="show the conflict first"
                )
        return {name: rows[side][name] for name, side in sides.items()}

    async def watch(self) -> AsyncGenerator[Conflict, None]:
        """Yield the open conflicts, and then each that is recorded or resolved, as it happens."""
        began = (await self._store.read(_SQL["now"], fresh=True)).value
        seen: dict[str, str] = {}
        async for turn in self._store.changes():
            with turn.retry_if_unavailable():
                for conflict in await self._read_changed(began, seen):
                    seen[conflict.conflict_id] = conflict.state
                    yield conflict

    async def _read_changed(self, began: str, seen: Mapping[str, str]) -> Sequence[Conflict]:
        """Return the conflicts whose state differs from the one seen."""
        marks = await self._store.read(_SQL["marks"], (*self._mesh, began))
        ids = [row["conflict_id"] for row in marks if seen.get(row["conflict_id"]) != row["state"]]
        return [
            Conflict.from_row(row)
            for conflict_id in ids
            for row in await self._store.read(_SQL["beginning_with"], (*self._mesh, conflict_id))
        ]

    # --- recording -------------------------------------------------------------------------------

    def record(
        self,
        conflict_id: str,
        address: RowAddress,
        sides: tuple[Columns | None, Columns, Columns | None],
        *,
        agent: str | None,
        strategy: str,
        deferred_to: str | None,
    ) -> Statement:
        """Return the statement that records a conflict for review, if the row is still the right side."""
        base, left, right = sides
        condition, params = address.unchanged_condition(right)
        values = (
            *self._mesh,
            conflict_id,
            address.table.name,
            address.row_key,
            _text(base),
            row_text(left),
            _text(right),
            self._versions.node_id,
            agent,
            writer_of(right),
            strategy,
            deferred_to,
        )
        return Statement(f"{_SQL['record']} WHERE {condition}", (*values, *params))

    # --- resolving -------------------------------------------------------------------------------

    async def resolve(
        self,
        conflict_id: str,
        *,
        take: Take | str | None = None,
        value: Columns | None = None,
        reason: str | None = None,
        agent: str | None = None,
        onto: str | None = None,
    ) -> Resolution:
        """Set the row to one side, the merge of both, or these values, and close the conflict.

        The row must still be the recorded right side: otherwise `RowMoved` is raised, and nothing changes. To
        decide on the current row instead, pass its `written_at`, or `GONE`, as `onto`.
        """
        chosen = _check_choice(take, value)
        await self._versions.refuse_if_off()
        conflict = await self.find(conflict_id)
        if not conflict.is_open:
            raise _already_resolved(conflict)
        address = await self._versions.locate(
            conflict.table_name, conflict.row_key, conflict.base, conflict.left, conflict.right, value
        )
        right = conflict.right if onto is None else await self._read_expected(address, onto)
        decision = _decide(conflict, address, right, chosen, value)
        written_at = None if decision.values is None else await self._versions.next(right)
        agent = agent or current_agent() or self._versions.agent
        op, statements = self._change(conflict, address, decision, written_at, reason, agent)
        try:
            outcome = await self._permits.write_op(
                op, *statements, agent=agent, send=lambda script: self._versions.send(address, script)
            )
        except NotGranted:
            raise
        except Refused as refused:
            if refused.reason == _NOT_OPEN:
                raise _already_resolved(await self.find(conflict.conflict_id)) from None
            raise _row_moved(await self._versions.read(address), refused.statement) from None
        return Resolution(conflict.conflict_id, outcome.key, decision.name, written_at)

    async def _read_expected(self, address: RowAddress, onto: str) -> dict[str, Any] | None:
        now = await self._versions.read(address)
        if onto != _version(now):
            raise _row_moved(now, 0)
        return now

    def _change(
        self,
        conflict: Conflict,
        address: RowAddress,
        decision: _Decision,
        written_at: str | None,
        reason: str | None,
        agent: str | None,
    ) -> tuple[Op, Sequence[Statement]]:
        """Return the op that resolves a conflict, and its effects."""
        node_id = self._versions.node_id
        name, over, values = decision
        whose = (*self._mesh, conflict.conflict_id)
        statements = [
            Statement(_SQL["refuse_unless_open"], whose, refusal=_NOT_OPEN),
            guard(*address.unchanged_condition(over), refusal=_MOVED),
        ]
        if values is not None and written_at is not None:
            statements.append(address.put(values, over, written_at))
        statements.append(Statement(_SQL["resolve"], (*whose, node_id, agent, name, reason)))
        payload = {
            "conflict_id": conflict.conflict_id,
            "table": conflict.table_name,
            "key": encode_row(conflict.row_key),
            "take": name,
            "over": None if over is None else over[WRITTEN_AT],
            "value": None if values is None else encode_row(values),
            "written_at": written_at,
            "reason": reason,
            "who": {"node": node_id, "agent": agent},
        }
        return Op(RESOLVE, canonical(payload)), statements

    @property
    def _mesh(self) -> tuple[str, str]:
        return self._store.writer_id.scope_id, self._store.writer_id.repository_id


def _text(row: Columns | None) -> str | None:
    return None if row is None else row_text(row)


def _check_choice(take: Take | str | None, value: Columns | None) -> Take | None:
    if (take is None) == (value is None):
        raise BadValue("exactly one of take and value must be given", hint="pass take or value")
    try:
        return None if take is None else Take(take)
    except ValueError:
        raise BadValue(
            f"take must be left, right or merge, got {take!r}", hint='pass take="right" to keep the row'
        ) from None


def _decide(
    conflict: Conflict, address: RowAddress, right: Columns | None, take: Take | None, value: Columns | None
) -> _Decision:
    match take:
        case Take.RIGHT:
            return _Decision(take.value, right, None)
        case Take.LEFT:
            return _Decision(take.value, right, address.bare(conflict.left))
        case Take.MERGE:
            return _Decision(take.value, right, _merge_sides(conflict, address, right))
        case _:
            return _Decision("value", right, address.values(value or {}, right))


def _merge_sides(conflict: Conflict, address: RowAddress, right: Columns | None) -> dict[str, Any] | None:
    """Return the changes that the merge makes to the right side; `None` if there are none."""
    if right is None:
        raise MergeClash(
            "sides not merged: the row was deleted",
            columns=(),
            hint="take left to write it again, or right to leave it deleted",
        )
    merged = three_way(conflict.base, address.bare(conflict.left), address.bare(right))
    if merged.clashes:
        raise MergeClash(
            f"sides not merged: both changed {', '.join(merged.clashes)}",
            columns=merged.clashes,
            hint="take left or right, or pass the value",
        )
    return changed_columns(merged.row, right) or None


def _already_resolved(conflict: Conflict) -> AlreadyResolved:
    who = conflict.resolved_agent or conflict.resolved_by
    return AlreadyResolved(
        f"conflict {conflict.conflict_id} was resolved ({conflict.resolution}) by {who} "
        f"at {conflict.resolved_at}",
        statement=0,
        hint="nothing was changed; to change the row again, write it",
    )


def _version(row: Columns | None) -> str:
    return GONE if row is None else row[WRITTEN_AT] or ""


def _row_moved(now: dict[str, Any] | None, statement: int) -> RowMoved:
    current = "it was deleted" if now is None else f"it is now {orjson.dumps(show_row(now)).decode()}"
    current = current if len(current) <= _MAX_SHOWN_CHARS else f"{current[:_MAX_SHOWN_CHARS]}..."
    return RowMoved(
        f"row changed since the conflict was recorded: {current}",
        now=now,
        version=_version(now),
        statement=statement,
        hint=f"nothing was changed; to decide on the current row, add --onto '{_version(now)}'",
    )
