"""Cron ops: the crons that the log has. A row of `job_crons` proves nothing.

A cron is added and removed by signed ops. Those from before there were such ops the owner adopts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import READ_ERRORS
from vox_mesh.oplog.op_kinds import ADD_CRON, ADOPT_CRONS, REMOVE_CRON
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op
from vox_mesh.store.store import Store

CRONS_SIGNED: Final = 13
"""The schema version whose code adds crons by signed ops."""

_SQL: Final = named("crons")
_MAX_VERIFIED: Final = 4_096
_PAGE: Final = 200
_UNSETTLED: Final = ""
"""No mark: a seal may yet show that an op was refused."""


class CronDefinition(NamedTuple):
    """What an op fixes about a cron: all but its times."""

    expression: str
    timezone: str
    manifest: str
    options: str


def adding(name: str, definition: CronDefinition) -> Op:
    """Return the op that adds a cron."""
    return Op(ADD_CRON, canonical({"crons": {name: [*definition]}}), signed=True)


def removing(name: str) -> Op:
    """Return the op that removes a cron."""
    return Op(REMOVE_CRON, canonical({"name": name}), signed=True)


def adopting(crons: Mapping[str, CronDefinition]) -> Op:
    """Return the op by which the owner adopts crons that no op has added."""
    return Op(ADOPT_CRONS, canonical({"crons": {name: [*each] for name, each in crons.items()}}), signed=True)


class CronOps:
    """Replays the ops about crons; each is verified once."""

    def __init__(self, store: Store, trusted_keys: TrustedKeys) -> None:
        self._store = store
        self._trusted_keys = trusted_keys
        self._verified = Recent[str, bool](_MAX_VERIFIED)
        self._mark: str | None = None
        self._is_settled = True
        self.definitions: dict[str, CronDefinition] = {}
        """The crons in force, by name, as they were last read."""
        self.since_ms: dict[str, int] = {}
        """The time of the op that added each of them; 0 if it existed before there were such ops."""
        self.has_adopted = False
        """Whether the owner has adopted the crons from before there were ops."""

    async def refresh(self, *, fresh: bool = False) -> None:
        """Read the ops again if there are others since the last time."""
        mark = (await self._store.read(_SQL["mark"], self._store.mesh_id, fresh=fresh)).value
        if mark == self._mark:
            return
        definitions: dict[str, CronDefinition] = {}
        since_ms: dict[str, int] = {}
        self.has_adopted, self._is_settled, time = False, True, ""
        while rows := await self._store.read(_SQL["ops"], (*self._store.mesh_id, time, _PAGE), fresh=fresh):
            for entry in map(LogEntry._make, rows):
                if await self._is_authentic(entry) and await self._counts(entry):
                    self._apply(entry, definitions, since_ms)
            time = rows[-1]["hlc"]
        self.definitions, self.since_ms = definitions, since_ms
        self._mark = mark if self._is_settled else _UNSETTLED

    def _apply(
        self, entry: LogEntry, definitions: dict[str, CronDefinition], since_ms: dict[str, int]
    ) -> None:
        try:
            payload: Any = parse(entry.payload)
            if entry.kind == REMOVE_CRON:
                definitions.pop(payload["name"], None)
                return
            added = _definitions(payload["crons"].items())
            if entry.kind == ADOPT_CRONS:
                self.has_adopted = True
            elif any(definitions.get(name, each) != each for name, each in added.items()):
                return  # it was refused, whatever is said of it: another cron has this name
            definitions.update(added)
            since_ms.update(
                dict.fromkeys(added, 0 if entry.kind == ADOPT_CRONS else Hlc.parse(entry.hlc).wall_ms)
            )
        except READ_ERRORS:
            return

    async def _counts(self, entry: LogEntry) -> bool:
        """Return whether an op took effect; no removal is undone because it is marked as refused."""
        if entry.accepted == 1 or entry.kind == ADOPT_CRONS:  # which is never refused
            return True
        if entry.kind != REMOVE_CRON or await self._trusted_keys.is_sealed(entry):
            return False
        self._is_settled = False
        return True

    async def _is_authentic(self, entry: LogEntry) -> bool:
        known = self._verified.get(entry.hash)
        if known is None:
            if entry.kind == ADOPT_CRONS:
                known = await self._trusted_keys.is_of_owner(entry)
            else:
                known = await self._trusted_keys.is_authentic(entry)
            self._verified[entry.hash] = known
        return known


def _definitions(crons: Iterable[tuple[str, Iterable[str]]]) -> dict[str, CronDefinition]:
    return {name: CronDefinition._make(each) for name, each in crons}
