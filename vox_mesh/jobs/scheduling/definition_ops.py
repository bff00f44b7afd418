"""Definition ops: what signed ops have added by name and not removed. A row of a table proves nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

from vox_mesh.model.base.canonical import parse
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import READ_ERRORS, is_whole
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.store import Store

_MAX_VERIFIED: Final = 4_096
_PAGE: Final = 200
_UNSETTLED: Final = ""
"""No mark: a seal may yet show that an op was refused."""

Definition = TypeVar("Definition")


class DefinitionOps(ABC, Generic[Definition]):
    """Replays the ops that add and remove definitions; each is verified once.

    `sql` has the statements `mark` and `ops`; ops of the kind `removal` name what they remove.
    """

    def __init__(self, store: Store, trusted_keys: TrustedKeys, sql: Mapping[str, str], removal: str) -> None:
        self._store = store
        self._trusted_keys = trusted_keys
        self._sql = sql
        self._removal = removal
        self._verified = Recent[tuple[str, str | None], bool](_MAX_VERIFIED)
        self._mark: str | None = None
        self._is_settled = True
        self.definitions: dict[str, Definition] = {}
        """The definitions in force, by name, as they were last read."""
        self.since: dict[str, int] = {}
        """When each of them was added: a time, or a position in the log."""

    async def refresh(self, *, fresh: bool = False) -> None:
        """Read the ops again if there are others since the last time."""
        mark = (await self._store.read(self._sql["mark"], self._store.mesh_id, fresh=fresh)).value
        if mark == self._mark:
            return
        self._start_over()
        definitions: dict[str, Definition] = {}
        since: dict[str, int] = {}
        self._is_settled, time = True, ""
        while rows := await self._store.read(
            self._sql["ops"], (*self._store.mesh_id, time, _PAGE), fresh=fresh
        ):
            for entry in map(LogEntry._make, rows):
                if await self._is_verified(entry) and await self._counts(entry):
                    self._apply(entry, definitions, since)
            time = rows[-1]["hlc"]
        self.definitions, self.since = definitions, since
        self._mark = mark if self._is_settled else _UNSETTLED

    def _start_over(self) -> None:
        """Forget what the ops have said besides the definitions, before they are read again."""

    def _apply(self, entry: LogEntry, definitions: dict[str, Definition], since: dict[str, int]) -> None:
        try:
            payload: Any = parse(entry.payload)
            if entry.kind == self._removal:
                definitions.pop(payload["name"], None)
                return
            added = self._added_by(entry, payload)
            if not self._replaces(entry):
                if any(definitions.get(name, new) != new for name, new in added.items()):
                    return  # it was refused, whatever is said of it: there is another one of this name
                added = {name: new for name, new in added.items() if name not in definitions}
            definitions.update(added)
            since.update(dict.fromkeys(added, self._time_of(entry)))
        except READ_ERRORS:
            return

    @abstractmethod
    def _added_by(self, entry: LogEntry, payload: Any) -> dict[str, Definition]:
        """Return the definitions that an op adds."""

    @abstractmethod
    def _time_of(self, entry: LogEntry) -> int:
        """Return since when what an op adds is in force."""

    def _replaces(self, entry: LogEntry) -> bool:
        """Return whether an op replaces definitions of the same name."""
        return False

    async def _counts(self, entry: LogEntry) -> bool:
        """Return whether an op took effect; no removal is undone because it is marked as refused."""
        if entry.accepted == 1:
            return True
        if entry.kind != self._removal or await self._trusted_keys.is_sealed(entry):
            return False
        self._is_settled = False
        return True

    async def _is_verified(self, entry: LogEntry) -> bool:
        """Return whether the author signed an op; a row may bear the hash of another one."""
        try:
            if not is_whole(entry):
                return False
        except READ_ERRORS:
            return False
        signed = (entry.hash, entry.signature)
        known = self._verified.get(signed)
        if known is None:
            known = self._verified[signed] = await self._is_authentic(entry)
        return known

    async def _is_authentic(self, entry: LogEntry) -> bool:
        return await self._trusted_keys.is_authentic(entry)
