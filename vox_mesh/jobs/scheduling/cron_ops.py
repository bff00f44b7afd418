"""Cron ops: the crons that the log has. A row of `job_crons` proves nothing.

A cron is added and removed by signed ops. Those from before there were such ops the owner adopts once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vox_mesh.jobs.scheduling.definition_ops import DefinitionOps
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.op_names import ADD_CRON, ADOPT_CRONS, REMOVE_CRON
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op
from vox_mesh.store.store import Store

_SQL: Final = named("crons")


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


class CronOps(DefinitionOps[CronDefinition]):
    """The crons in force; `since` has the time of their ops in ms, or 0 if they existed before such ops."""

    def __init__(self, store: Store, trusted_keys: TrustedKeys) -> None:
        super().__init__(store, trusted_keys, _SQL, REMOVE_CRON)
        self.has_adopted = False
        """Whether the owner has adopted the crons from before there were ops."""

    def _start_over(self) -> None:
        self.has_adopted = False

    def _added_by(self, entry: LogEntry, payload: Any) -> dict[str, CronDefinition]:
        added = {name: CronDefinition._make(each) for name, each in payload["crons"].items()}
        self.has_adopted |= entry.kind == ADOPT_CRONS
        return added

    def _time_of(self, entry: LogEntry) -> int:
        return 0 if entry.kind == ADOPT_CRONS else entry.time_ms

    def _replaces(self, entry: LogEntry) -> bool:
        return entry.kind == ADOPT_CRONS

    async def _counts(self, entry: LogEntry) -> bool:
        return entry.kind == ADOPT_CRONS or await super()._counts(entry)  # adopting is never refused

    async def _is_authentic(self, entry: LogEntry) -> bool:
        if entry.kind == ADOPT_CRONS:
            return await self._trusted_keys.is_of_owner(entry)
        return await super()._is_authentic(entry)
