"""Definition tables: the rows of crons or rules, by name. Each is added and removed by a signed op."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, Protocol, TypeVar

from vox_mesh.errors import BadValue, DatabaseUnavailable, NotKnown, OutcomeUnknown, Refused
from vox_mesh.jobs.scheduling.definition_ops import DefinitionOps
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.store.rows import Value
from vox_mesh.store.script import Op, Statement, new_key
from vox_mesh.store.store import Store

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class DefinedRecord(Protocol):
    """A row that has a definition."""

    @property
    def definition(self) -> Any:
        """Return its definition, which an op must have."""


Record = TypeVar("Record", bound=DefinedRecord)


class DefinitionTable(Generic[Record]):
    """Adds, finds and removes rows. Any number of nodes may do so concurrently.

    `sql` has the statements `refuse_if_other`, `add`, `find`, `listed`, `refuse_unless_there` and `remove`.
    """

    def __init__(
        self,
        noun: str,
        store: Store,
        sql: Mapping[str, str],
        ops: DefinitionOps[Any],
        record: Callable[[Iterable[Any]], Record],
        permits: Permits,
    ) -> None:
        self._permits = permits
        self._noun = noun
        self._store = store
        self._sql = sql
        self._ops = ops
        self._record = record
        self._other = f"{noun}_exists"
        self._not_there = f"no_such_{noun}"

    def statement(self, name: str, *values: Value, refusal: str | None = None) -> Statement:
        """Return a statement about this mesh."""
        return Statement(self._sql[name], (*self._store.mesh_id, *values), refusal=refusal)

    def check_name(self, name: str) -> None:
        """Raise `BadValue` if this is no name of a definition."""
        if not _NAME.fullmatch(name):
            raise BadValue(
                f"a {self._noun}'s name must be up to 64 letters, digits, _, . and -, got {name!r}",
                hint="choose another name",
            )

    async def add(
        self,
        name: str,
        definition: Sequence[Value],
        op: Op,
        *values: Value,
        guards: Sequence[Statement] = (),
    ) -> Record:
        """Add a definition by an op; `values` are further columns. Adding it again changes nothing.

        Raises `BadValue` if there is another definition of this name.
        """
        with suppress(DatabaseUnavailable):  # adding it again does no harm
            await self._ops.refresh(fresh=True)
            stored = await self._find(name)
            if stored is not None and stored.definition == definition == self._ops.definitions.get(name):
                return stored
        key = new_key()
        try:
            written = await self._permits.write_op(
                op,
                self.statement("refuse_if_other", name, *definition, refusal=self._other),
                *guards,
                self.statement("add", name, *definition, *values),
            )
            key = written.key
            stored = await self._find(name)
        except Refused as refused:
            if refused.reason != self._other:
                raise
            raise BadValue(
                f"{self._noun} {name} exists already with another definition", hint="remove it first"
            ) from None
        except DatabaseUnavailable as error:  # it may be added
            raise OutcomeUnknown(
                f"the {self._noun} that was added can't be read: {error}", key=key
            ) from error
        if stored is None:
            raise NotKnown(f"{self._noun} {name} was removed while it was added", hint="add it again")
        return stored

    async def listed(self, *, fresh: bool = False) -> list[Record]:
        """Return all rows by name."""
        rows = await self._store.read(self._sql["listed"], self._store.mesh_id, fresh=fresh)
        return [self._record(row) for row in rows]

    async def remove(self, name: str, op: Op) -> None:
        """Remove a definition by an op. Raises `NotKnown` if there is none of this name."""
        try:
            await self._permits.write_op(
                op,
                self.statement("refuse_unless_there", name, refusal=self._not_there),
                self.statement("remove", name),
            )
        except Refused as refused:
            if refused.reason != self._not_there:
                raise
            raise NotKnown(
                f"there is no {self._noun} {name}", hint=f"run `vox-mesh {self._noun} list`"
            ) from None

    async def _find(self, name: str) -> Record | None:
        rows = await self._store.read(self._sql["find"], (*self._store.mesh_id, name), fresh=True)
        return self._record(rows[0]) if rows else None
