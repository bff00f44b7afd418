"""Job kinds: pause, limit and audit them; drain nodes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

import orjson
from pydantic import ConfigDict, TypeAdapter, ValidationError

from vox_mesh.errors import BadValue, NotKnown
from vox_mesh.jobs.queries import JobQueries, KindRules
from vox_mesh.jobs.transitions import SQL as JOBS
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.documents.validation import shown
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.manifest_fields import Kind
from vox_mesh.model.oplog.op_names import DRAIN_NODE, SET_KIND, UNDRAIN_NODE
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Statement
from vox_mesh.store.store import Store

MAX_RATE_MS: Final = 30 * 86_400_000
"""The longest period of a rate limit."""

_MAX_COUNT: Final = 1_000_000
_LEASE_MS: Final = (1_000, 86_400_000)  # as in a manifest
_SQL: Final = named("job_kinds")
_SWITCHES: Final = {"is_paused": "pause", "is_audited": "audit"}
_INCARNATION: Final = named("nodes")["incarnation"]
_KIND: Final = TypeAdapter(Kind, config=ConfigDict(defer_build=True))


class Keep(Enum):
    """A marker for a limit that stays unchanged."""

    KEEP = "keep"


KEEP: Final = Keep.KEEP
Limit = int | None | Keep
"""A number, `None` for no limit, or `KEEP` for the current limit."""


class JobKinds:
    """Sets the rules of job kinds for the whole mesh. Kinds are exact names, not patterns."""

    def __init__(self, store: Store, queries: JobQueries, permits: Permits) -> None:
        self._permits = permits
        self._store = store
        self._mesh = store.mesh_id
        self._queries = queries

    async def pause(self, kind: str) -> None:
        """Stop claims of jobs of this kind; running jobs continue."""
        await self.set_rules(kind, {"is_paused": True})

    async def resume(self, kind: str) -> None:
        """Allow claims of jobs of this kind again."""
        await self.set_rules(kind, {"is_paused": False})

    async def audit(self, kind: str, on: bool = True) -> None:
        """Set whether a success of this kind requires an inference record."""
        await self.set_rules(kind, {"is_audited": on})

    async def limit(
        self,
        kind: str,
        *,
        max_running: Limit = KEEP,
        rate: Limit = KEEP,
        per_ms: int | None = None,
        lease_ms: Limit = KEEP,
    ) -> None:
        """Limit the running jobs, the claims per period, and the lease of a kind.

        A limit that is not given stays; `None` removes it. `rate` and `per_ms` go together.
        """
        if (per_ms is not None) != isinstance(rate, int):
            raise BadValue(
                "rate and per_ms must be given together",
                hint="for example rate=10, per_ms=60000",
            )
        _check_range("max_running", max_running, 1, _MAX_COUNT)
        _check_range("rate", rate, 1, _MAX_COUNT)
        _check_range("per_ms", per_ms, 1, MAX_RATE_MS)
        _check_range("lease_ms", lease_ms, *_LEASE_MS)
        rate_ms = KEEP if rate is KEEP else per_ms
        columns = {"max_running": max_running, "rate": rate, "rate_ms": rate_ms, "lease_ms": lease_ms}
        given = {name: value for name, value in columns.items() if value is not KEEP}
        if not given:
            raise BadValue("no limit given", hint="pass max_running, rate with per_ms, or lease_ms")
        await self.set_rules(kind, given)

    async def listed(self) -> list[KindRules]:
        """Return the rules of all kinds that have any."""
        return [
            rules
            for kind, rules in (await self._queries.situation()).rules.items()
            if rules != KindRules(kind)
        ]

    async def drain(self, node_id: str) -> None:
        """Drain a node until `undrain`: it claims no more jobs, and its running jobs continue."""
        if not await self._store.read(_INCARNATION, (*self._mesh, node_id), fresh=True):
            raise NotKnown(f"there is no node {node_id}", hint="run `vox-mesh nodes --all`")
        await self._write(DRAIN_NODE, {"node": node_id}, JOBS["drain"], node_id)

    async def undrain(self, node_id: str) -> None:
        """Let a drained node claim jobs again."""
        await self._write(UNDRAIN_NODE, {"node": node_id}, JOBS["undrain"], node_id)

    async def set_rules(self, kind: str, rules: Mapping[str, Any]) -> None:
        """Set whether a kind is paused or audited, or its limits, given as an op has them."""
        name, value = next(
            ((name, rules[rule]) for rule, name in _SWITCHES.items() if rule in rules),
            ("limit", orjson.dumps(dict(rules)).decode()),
        )
        await self._write(SET_KIND, {"kind": _check_kind(kind), **rules}, _SQL[name], kind, value)

    async def _write(self, op: str, payload: dict[str, Any], sql: str, *values: Any) -> None:
        statement = Statement(sql, (*self._mesh, *values))
        await self._permits.write_op(Op(op, canonical(payload)), statement)


def _check_kind(kind: str) -> str:
    try:
        return _KIND.validate_python(kind, strict=True)
    except ValidationError:
        allowed = Manifest.model_fields["kind"].description or ""
        raise BadValue(f"a kind must be {allowed}, got {shown(kind)}") from None


def _check_range(name: str, value: Limit, least: int, most: int) -> None:
    if isinstance(value, Keep) or value is None:
        return
    if type(value) is not int or not least <= value <= most:
        raise BadValue(f"{name} must be an integer from {least} to {most}, got {shown(value)}")
