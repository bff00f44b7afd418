"""The past of the log: compare it with what nodes remember of the database, and with the pinned owner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vox_mesh.model.nodes.store_memory import Epoch, StoreState, is_other_database, rollback_evidence
from vox_mesh.model.oplog.verification import ChainReport
from vox_mesh.oplog.ownership import Ownership
from vox_mesh.oplog.witness import RememberedStore
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

_SQL: Final = named("rollback")


class LogPast:
    """Find that the whole log was rolled back, wiped or replaced, which no chain shows by itself."""

    def __init__(self, store: Store, ownership: Ownership) -> None:
        self._store = store
        self._ownership = ownership

    async def findings(self, remembered: Sequence[RememberedStore]) -> list[ChainReport]:
        """Return a report without a chain for each thing found."""
        problems = [problem for each in remembered if (problem := await self._problem(each)) is not None]
        key = self._ownership.pinned_key
        if key is not None and await self._ownership.owner() is None:
            problems.append(f"no op signed with the pinned key {key} initialises the mesh")
        return [ChainReport("", 0, 0, 0, problem) for problem in problems]

    async def _problem(self, remembered: RememberedStore) -> str | None:
        memory, source = remembered.memory, remembered.source
        state = await self._state(remembered)
        if is_other_database(memory, state):
            return f"the log is another one than {source} recorded, up to id {memory.last_id}"
        if state.epoch.follows(memory.epoch):
            return None  # rolled back, and recorded as such
        evidence = rollback_evidence(memory, state)
        return None if evidence is None else f"the log was rolled back since {source} recorded: {evidence}"

    async def _state(self, remembered: RememberedStore) -> StoreState:
        values = (*self._store.tenant[:2], remembered.node_id, remembered.memory.entry_id)
        row = (await self._store.read(_SQL["state"], values, fresh=True))[0]
        epoch = Epoch(row["epoch"], row["epoch_op"], row["origin"])
        return StoreState(row["incarnation"], row["beats"], row["last_id"], row["op_at_entry"], epoch)
