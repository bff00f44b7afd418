"""The past of the log: compare it with what nodes remember of the database, and with the pinned owner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson

from vox_mesh.model.nodes.store_memory import (
    ROLLED_BACK,
    Epoch,
    StoreState,
    is_other_database,
    rollback_evidence,
)
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import ChainReport, RecordedHead
from vox_mesh.oplog.ownership import Ownership
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.oplog.witness import RememberedStore
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

_SQL: Final = named("rollback")
_OPLOG: Final = named("oplog")


class KnownPast(NamedTuple):
    """The heads that chains had, and reports, without a chain, of what the log as a whole shows."""

    heads: list[RecordedHead]
    reports: list[ChainReport]


class LogPast:
    """Find that the whole log was rolled back, wiped or replaced, which no chain shows by itself."""

    def __init__(self, store: Store, ownership: Ownership, trusted_keys: TrustedKeys) -> None:
        self._store = store
        self._ownership = ownership
        self._trusted_keys = trusted_keys

    async def compare(self, remembered: Sequence[RememberedStore]) -> KnownPast:
        """Compare the log with these memories; one from before a recorded rollback does not count."""
        heads: list[RecordedHead] = []
        problems: list[str | None] = []
        for each in remembered:
            state = await self._state(each)
            if not state.epoch.follows(each.memory.epoch) or not await self._is_recorded(state.epoch):
                heads += each.heads
                problems.append(_problem(each, state))
        problems.append(await self._owner_problem())
        problems += [
            f"the log has lost the op {op}, by which the ownership passed on" for op in self._ownership.lost
        ]
        reports = [ChainReport("", 0, 0, 0, problem) for problem in problems if problem is not None]
        return KnownPast(heads, reports)

    async def _owner_problem(self) -> str | None:
        owner, key = await self._ownership.owner(), self._ownership.pinned_key
        if key is None or owner is not None:
            return None
        return f"no owner of the mesh has the pinned key {key}"

    async def _state(self, remembered: RememberedStore) -> StoreState:
        values = (*self._store.mesh_id, remembered.node_id, remembered.memory.entry_id)
        row = (await self._store.read(_SQL["state"], values, fresh=True))[0]
        epoch = Epoch(row["epoch"], row["epoch_op"], row["origin"])
        return StoreState(row["incarnation"], row["beats"], row["last_id"], row["op_at_entry"], epoch)

    async def _is_recorded(self, epoch: Epoch) -> bool:
        """Return whether the node that found the rollback has signed for it: anyone can write an epoch."""
        values = (*self._store.mesh_id, orjson.dumps([epoch.op_id]).decode())
        entries = [LogEntry._make(row) for row in await self._store.read(_OPLOG["entries_of"], values)]
        return bool(entries) and entries[0].kind == ROLLED_BACK and await self._is_authentic(entries[0])

    async def _is_authentic(self, entry: LogEntry) -> bool:
        return entry.accepted == 1 and await self._trusted_keys.is_authentic(entry)


def _problem(remembered: RememberedStore, state: StoreState) -> str | None:
    memory, source = remembered.memory, remembered.source
    if is_other_database(memory, state):
        return f"the log is another one than {source} recorded, up to id {memory.last_id}"
    evidence = rollback_evidence(memory, state)
    return None if evidence is None else f"the log was rolled back since {source} recorded: {evidence}"
