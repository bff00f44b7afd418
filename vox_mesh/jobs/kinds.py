"""Kinds of job: paused or not, how many at a time, how often and how long; and nodes that take no more."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError

from vox_mesh.errors import BadValue, NotKnown
from vox_mesh.jobs.queries import JobQueries, KindRules
from vox_mesh.jobs.transitions import SQL as JOBS
from vox_mesh.model.documents.validation import shown
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.manifest_fields import Kind
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

MAX_RATE_MS: Final = 30 * 86_400_000
"""The longest time that a rate can be of."""

_MAX_COUNT: Final = 1_000_000
_LEASE_MS: Final = (1_000, 86_400_000)  # as in a manifest
_SQL: Final = named("job_kinds")
_INCARNATION: Final = named("nodes")["incarnation"]
_KIND: Final = TypeAdapter(Kind, config=ConfigDict(defer_build=True))


class Keep(Enum):
    """Says that something stays as it is."""

    KEEP = "keep"


KEEP: Final = Keep.KEEP
Limit = int | None | Keep
"""A number; `None` for no limit; or what there was."""


class JobKinds:
    """Decides of kinds of job, for the whole mesh. A kind is named exactly, not by a pattern."""

    def __init__(self, store: Store, queries: JobQueries) -> None:
        self._store = store
        self._mesh = store.tenant[:2]
        self._queries = queries

    async def pause(self, kind: str) -> None:
        """Have no more jobs of this kind claimed; those in hand go on."""
        await self._write("pause", _checked(kind), True)

    async def resume(self, kind: str) -> None:
        """Have jobs of this kind claimed again."""
        await self._write("pause", _checked(kind), False)

    async def audit(self, kind: str, on: bool = True) -> None:
        """Whether a success of this kind must come with a record of its inference."""
        await self._write("audit", _checked(kind), on)

    async def limit(
        self,
        kind: str,
        *,
        max_running: Limit = KEEP,
        rate: Limit = KEEP,
        per_ms: int | None = None,
        lease_ms: Limit = KEEP,
    ) -> None:
        """Limit how many are in hand at a time, how many are claimed in a time, and how long a claim holds.

        What is not named stays; `None` is no limit. A rate comes with its time.
        """
        if (per_ms is not None) != isinstance(rate, int):
            raise BadValue(
                "a rate is so many claims in a time, and both are given together",
                hint="for example rate=10, per_ms=60000",
            )
        _refuse_outside("max_running", max_running, 1, _MAX_COUNT)
        _refuse_outside("rate", rate, 1, _MAX_COUNT)
        _refuse_outside("per_ms", per_ms, 1, MAX_RATE_MS)
        _refuse_outside("lease_ms", lease_ms, *_LEASE_MS)
        rate_ms = KEEP if rate is KEEP else per_ms
        columns = {"max_running": max_running, "rate": rate, "rate_ms": rate_ms, "lease_ms": lease_ms}
        given = {name: value for name, value in columns.items() if value is not KEEP}
        if not given:
            raise BadValue("no limit was given", hint="max_running, rate with per_ms, or lease_ms")
        await self._write("limit", _checked(kind), orjson.dumps(given).decode())

    async def listed(self) -> list[KindRules]:
        """The kinds of which anything is decided."""
        return [
            rules
            for kind, rules in (await self._queries.situation()).rules.items()
            if rules != KindRules(kind)
        ]

    async def drain(self, node_id: str) -> None:
        """Have a node take no more work, until it is told otherwise; what it has in hand goes on."""
        if not await self._store.read(_INCARNATION, (*self._mesh, node_id), fresh=True):
            raise NotKnown(f"there is no node {node_id}", hint="see `vox-mesh nodes --all`")
        await self._store.write(Script(Statement(JOBS["drain"], (*self._mesh, node_id))))

    async def undrain(self, node_id: str) -> None:
        """Have a node take work again."""
        await self._store.write(Script(Statement(JOBS["undrain"], (*self._mesh, node_id))))

    async def _write(self, name: str, *values: Any) -> None:
        await self._store.write(Script(Statement(_SQL[name], (*self._mesh, *values))))


def _checked(kind: str) -> str:
    try:
        return _KIND.validate_python(kind, strict=True)
    except ValidationError:
        allowed = Manifest.model_fields["kind"].description or ""
        raise BadValue(f"{shown(kind)} is no kind of job", hint=allowed) from None


def _refuse_outside(name: str, value: Limit, least: int, most: int) -> None:
    if isinstance(value, Keep) or value is None:
        return
    if type(value) is not int or not least <= value <= most:
        raise BadValue(f"{name} can't be {shown(value)}", hint=f"a whole number from {least} to {most}")
