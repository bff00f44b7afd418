"""Conflicts: writes that lost a race and were left for review, and what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import (
    AlreadyResolved,
    BadValue,
    DatabaseUnavailable,
    MergeClash,
    NotKnown,
    Refused,
    RowMoved,
    TooLarge,
)
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.row_json import encoded, row_of, row_text, shown
from vox_mesh.model.occ.merge import Columns, differing, three_way
from vox_mesh.occ.tables import WRITTEN_AT, RowAddress
from vox_mesh.occ.versions import Versions, writer_of
from vox_mesh.oplog.op_kinds import RESOLVE
from vox_mesh.store.rows import Row
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Script, Statement, guard
from vox_mesh.store.store import Store

GONE: Final = "gone"
"""In the place of a version: there is no row."""

_SQL: Final = named("occ")
_PAGE: Final = 256
_AGAIN_S: Final = 1.0
_LONGEST_SHOWN: Final = 1_000
_NOT_OPEN: Final = "already_resolved"
_MOVED: Final = "row_moved"


class Take(StrEnum):
    """Which side a conflict is resolved to."""

    LEFT = "left"
    RIGHT = "right"
    MERGE = "merge"


@dataclass(frozen=True, slots=True)
class Conflict:
    """A write that lost: `left` is what it wanted, `right` what was there, `base` what it had read.

    No `base`: it took the row for absent. No `right`: the row was gone.
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
        """Whether nobody has resolved it yet."""
        return self.state == "open"

    @classmethod
    def of(cls, row: Row) -> Conflict:
        """The conflict that a row of the table tells of."""
        told: dict[str, Any] = row.as_dict()
        for name in ("row_key", "base", "left", "right"):
            told[name] = None if told[name] is None else row_of(told[name])
        return cls(**told)


Page = list[Conflict]


class Resolution(NamedTuple):
    """How a conflict was resolved, by which op; `written_at` is the row's new version, if it has one."""

    conflict_id: str
    op_id: str
    resolution: str
    written_at: str | None


class _Decision(NamedTuple):
    """What is to become of the row: `values` are written over `over`; without any, it stays as it is."""

    name: str
    over: Columns | None
    values: dict[str, Any] | None


class Conflicts:
    """Lists conflicts, and resolves them."""

    def __init__(self, store: Store, versions: Versions) -> None:
        self._store = store
        self._versions = versions

    # --- reading ---------------------------------------------------------------------------------

    async def list(self, *, open_only: bool = False, table: str | None = None) -> list[Conflict]:
        """All conflicts, oldest first, or those that are open, or of one table."""
        return await self.after("", None, open_only=open_only, table=table)

    async def after(
        self, conflict_id: str, limit: int | None, *, open_only: bool = False, table: str | None = None
    ) -> Page:
        """Those that were recorded after this one, so many at the most."""
        found: Page = []
        last, most = conflict_id, _PAGE
        state = "open" if open_only else None
        while limit is None or len(found) < limit:
            wanted = most if limit is None else min(most, limit - len(found))
            try:
                rows = await self._store.read(_SQL["after"], (*self._mesh, last, state, table, wanted))
            except TooLarge:  # rows may be large, and no server answers with any number of them
                if most == 1:
                    raise
                most //= 2
                continue
            found += map(Conflict.of, rows)
            if len(rows) < wanted:
                break
            last = found[-1].conflict_id
        return found

    async def find(self, conflict_id: str) -> Conflict:
        """The conflict with this id, or the only one whose id begins so."""
        beginning = conflict_id.upper()
        if not (beginning.isascii() and beginning.isalnum()):
            raise BadValue(f"{conflict_id!r} is no id of a conflict", hint="see `vox-mesh conflicts list`")
        rows = await self._store.read(_SQL["beginning_with"], (*self._mesh, beginning), fresh=True)
        if not rows:
            raise NotKnown(f"there is no conflict {conflict_id}", hint="see `vox-mesh conflicts list`")
        if len(rows) > 1:
            raise BadValue(f"the ids of several conflicts begin with {conflict_id}", hint="give more of it")
        return Conflict.of(rows[0])

    async def watch(self) -> AsyncGenerator[Conflict, None]:
        """The open conflicts, and from then on each that is recorded or resolved, as it happens."""
        began = (await self._store.read(_SQL["now"], fresh=True)).value
        seen: dict[str, str] = {}
        while True:
            count, news = self._store.change_count, None
            with suppress(DatabaseUnavailable):  # it goes on when the database is back
                news = await self._news(began, seen)
            for conflict in news or ():
                seen[conflict.conflict_id] = conflict.state
                yield conflict
            with suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_S if news is None else None):
                    await self._store.changed(count)

    async def _news(self, began: str, seen: Mapping[str, str]) -> Sequence[Conflict]:
        """The conflicts that are not as they were seen."""
        marks = await self._store.read(_SQL["marks"], (*self._mesh, began))
        ids = [row["conflict_id"] for row in marks if seen.get(row["conflict_id"]) != row["state"]]
        return [
            Conflict.of(row)
            for conflict_id in ids
            for row in await self._store.read(_SQL["beginning_with"], (*self._mesh, conflict_id))
        ]

    # --- recording -------------------------------------------------------------------------------

    def record(
        self,
        conflict_id: str,
        place: RowAddress,
        sides: tuple[Columns | None, Columns, Columns | None],
        *,
        agent: str | None,
        strategy: str,
        deferred_to: str | None,
    ) -> Statement:
        """Leave base, left and right for review, if the row is still the right side."""
        base, left, right = sides
        condition, params = place.is_still(right)
        values = (
            *(*self._mesh, conflict_id, place.table.name, place.row_key),
            *(_text(base), row_text(left), _text(right)),
            *(self._versions.node_id, agent, writer_of(right), strategy, deferred_to),
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
        """Make the row what one side wanted, the merge of both, or these values, and close the conflict.

        Only if the row is still the right side as it was recorded: otherwise `RowMoved`, and nothing
        changes. Whoever has seen what the row is now decides on that instead: `onto` is its `written_at`,
        or `GONE`.
        """
        chosen = _chosen(take, value)
        await self._versions.refuse_if_off()
        conflict = await self.find(conflict_id)
        if not conflict.is_open:
            raise _resolved(conflict)
        place = await self._versions.place(
            conflict.table_name, conflict.row_key, conflict.base, conflict.left, conflict.right, value
        )
        right = conflict.right if onto is None else await self._seen(place, onto)
        decision = _decided(conflict, place, right, chosen, value)
        written_at = None if decision.values is None else await self._versions.next(right)
        script = self._script(conflict, place, decision, written_at, reason, agent or self._versions.agent)
        try:
            outcome = await self._versions.send(place, script)
        except Refused as refused:
            if refused.reason == _NOT_OPEN:
                raise _resolved(await self.find(conflict.conflict_id)) from None
            raise _moved(await self._versions.look(place), refused.statement) from None
        return Resolution(conflict.conflict_id, outcome.key, decision.name, written_at)

    async def _seen(self, place: RowAddress, onto: str) -> dict[str, Any] | None:
        now = await self._versions.look(place)
        if onto != _version(now):
            raise _moved(now, 0)
        return now

    def _script(
        self,
        conflict: Conflict,
        place: RowAddress,
        decision: _Decision,
        written_at: str | None,
        reason: str | None,
        agent: str | None,
    ) -> Script:
        node_id = self._versions.node_id
        name, over, values = decision
        whose = (*self._mesh, conflict.conflict_id)
        statements = [
            Statement(_SQL["refuse_unless_open"], whose, refusal=_NOT_OPEN),
            guard(*place.is_still(over), refusal=_MOVED),
        ]
        if values is not None and written_at is not None:
            statements.append(place.put(values, over, written_at))
        statements.append(Statement(_SQL["resolve"], (*whose, node_id, agent, name, reason)))
        payload = {
            "conflict_id": conflict.conflict_id,
            "table": conflict.table_name,
            "key": encoded(conflict.row_key),
            "take": name,
            "over": None if over is None else over[WRITTEN_AT],
            "value": None if values is None else encoded(values),
            "written_at": written_at,
            "reason": reason,
            "who": {"node": node_id, "agent": agent},
        }
        return Script(*statements, op=Op(RESOLVE, canonical(payload)))

    @property
    def _mesh(self) -> tuple[str, str]:
        return self._store.tenant.scope_id, self._store.tenant.repository_id


def _text(row: Columns | None) -> str | None:
    return None if row is None else row_text(row)


def _chosen(take: Take | str | None, value: Columns | None) -> Take | None:
    if (take is None) == (value is None):
        raise BadValue("a conflict is resolved to a side or to a value", hint="give one of take and value")
    try:
        return None if take is None else Take(take)
    except ValueError:
        raise BadValue(f"{take!r} is no side of a conflict", hint="take left, right or merge") from None


def _decided(
    conflict: Conflict, place: RowAddress, right: Columns | None, take: Take | None, value: Columns | None
) -> _Decision:
    match take:
        case Take.RIGHT:
            return _Decision(take.value, right, None)
        case Take.LEFT:
            return _Decision(take.value, right, place.bare(conflict.left))
        case Take.MERGE:
            return _Decision(take.value, right, _merged(conflict, place, right))
        case _:
            return _Decision("value", right, place.values(value or {}, right))


def _merged(conflict: Conflict, place: RowAddress, right: Columns | None) -> dict[str, Any] | None:
    """What the merge changes in the right side; `None` if that has it all."""
    if right is None:
        raise MergeClash(
            "the row was deleted, so there is nothing to merge with",
            columns=(),
            hint="take left to write it again, or right to leave it deleted",
        )
    merged = three_way(conflict.base, place.bare(conflict.left), place.bare(right))
    if merged.clashes:
        raise MergeClash(
            f"both sides changed {', '.join(merged.clashes)}",
            columns=merged.clashes,
            hint="take left or right, or give the value",
        )
    return differing(merged.row, right) or None


def _resolved(conflict: Conflict) -> AlreadyResolved:
    who = conflict.resolved_agent or conflict.resolved_by
    return AlreadyResolved(
        f"the conflict {conflict.conflict_id} was resolved ({conflict.resolution}) by {who} "
        f"at {conflict.resolved_at}",
        statement=0,
        hint="nothing was changed; write the row itself if it should be another",
    )


def _version(row: Columns | None) -> str:
    return GONE if row is None else row[WRITTEN_AT] or ""


def _moved(now: dict[str, Any] | None, statement: int) -> RowMoved:
    told = "it is gone" if now is None else f"it is now {orjson.dumps(shown(now)).decode()}"
    told = told if len(told) <= _LONGEST_SHOWN else f"{told[:_LONGEST_SHOWN]}..."
    return RowMoved(
        f"the row has moved on since the conflict was recorded: {told}",
        now=now,
        statement=statement,
        hint=f"nothing was changed; to decide on the row as it is now, add --onto '{_version(now)}'",
    )
