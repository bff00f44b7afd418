"""The sweep of a subject: how its rows are read in pages, and pruned in batches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.retention.ops import PRUNE
from vox_mesh.model.retention.policies import ALL_KINDS, RetentionPolicies
from vox_mesh.model.retention.pruning import Bounds, PrunableRow
from vox_mesh.model.retention.subjects import Subject
from vox_mesh.store.rows import Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Statement
from vox_mesh.store.store import Store

SQL: Final = named("retention")
PAGE: Final = 500
_PARAMETER: Final = re.compile(r"\?(\d+)")


class Removal(NamedTuple):
    """How a batch is pruned: by these statements, and with this op."""

    statements: Sequence[Statement]
    op: Op | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """How the rows of a subject are read and pruned. The names are those of statements in `retention.sql`."""

    subject: Subject
    pages: str
    prunes: Sequence[str]
    batch: int
    last: str | None = None
    """The last position of the rows that are too many."""
    last_by_bytes: str | None = None
    """The same, for a number of bytes."""
    upkeep: Sequence[str] = ()
    """The statements before it that prune rows without a policy; the last value is the number of rows."""
    states: tuple[str, ...] | None = None
    """The states of the rows that it is about, if the statements ask for them."""
    refuses: str | None = None
    """The guard of a batch."""
    is_logged: bool = False
    """Whether an op says what was pruned."""
    limit: int | None = None
    """How many rows a batch removes at most: it is repeated until it removes fewer."""

    async def page(self, store: Store, after: int, bounds: Bounds) -> list[PrunableRow]:
        """Return the next rows after a position."""
        values: tuple[Value, ...] = (after, PAGE, bounds.cutoff_ms, bounds.last_position, *self._state_values)
        values = (*store.mesh_id, *values)[: _value_count(self.pages)]
        rows = await store.read(SQL[self.pages], values)
        return [_row_of(row) for row in rows]

    async def bounds(self, store: Store, policies: RetentionPolicies, now_ms: int) -> Bounds:
        """Return what is past its policy now."""
        last: dict[str, int] = {}
        for policy in policies.of_subject(self.subject):
            is_rest = policy.kind == ALL_KINDS
            kinds = policies.own_kinds(self.subject) if is_rest else [policy.kind]
            for name, most in ((self.last, policy.max_rows), (self.last_by_bytes, policy.max_bytes)):
                if name is not None and most is not None:
                    values = (*store.mesh_id, json_list(kinds), is_rest, most, *self._state_values)
                    rows = await store.read(SQL[name], values)
                    last[policy.kind] = max(last.get(policy.kind, 0), int(rows.value) if rows else 0)
        return Bounds(self.subject, policies, now_ms, last)

    def removal(self, mesh: tuple[str, str], keys: Sequence[str], now_ms: int) -> Removal:
        """Return how these rows are pruned."""
        values: tuple[Value, ...] = (*mesh, json_list(keys))
        statements = [Statement(SQL[name], values) for name in self.prunes]
        if self.limit is not None:
            statements = [Statement(SQL[name], (*values, self.limit)) for name in self.prunes]
        if self.refuses is not None:
            statements.insert(0, Statement(SQL[self.refuses], values, refusal=NEEDED))
        if not self.is_logged:
            return Removal(statements)
        items = [{"job_id": key} for key in keys]
        return Removal(statements, Op(PRUNE, canonical({"at_ms": now_ms, "jobs": items})))

    @property
    def _state_values(self) -> tuple[Value, ...]:
        return () if self.states is None else (json_list(self.states),)


NEEDED: Final = "needed"
"""The refusal of a batch if something needs one of its rows."""


@cache
def _value_count(name: str) -> int:
    """Return the number of values a statement takes."""
    return max(int(found[1]) for found in _PARAMETER.finditer(SQL[name]))


def _row_of(row: Sequence[Any]) -> PrunableRow:
    """Return a row of a page; one with values of other types, which only a hostile writer leaves, stays."""
    position, key, kind, born_ms, ended_ms, is_needed, referrers = row
    is_readable = isinstance(key, str) and isinstance(kind, str) and isinstance(born_ms, int)
    if not is_readable or not isinstance(ended_ms, int | None):
        return PrunableRow(position, "", "", 0, None, is_needed=True)
    needed_by = tuple(orjson.loads(referrers))
    return PrunableRow(position, key, kind, born_ms, ended_ms, bool(is_needed), needed_by)


def json_list(values: Sequence[str]) -> str:
    """Return a JSON array of these texts."""
    return orjson.dumps(values).decode()
