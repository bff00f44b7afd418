"""Ownership: find the owners of the mesh in the log. The table `mesh_owner` only caches the last one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from vox_mesh.errors import BadSettings
from vox_mesh.model.oplog.authorship import Owner, states_signed_crons
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.succession import Succession, Successions
from vox_mesh.model.oplog.verification import ChainWitness, Key
from vox_mesh.oplog.pages import Pages
from vox_mesh.oplog.step_memory import StepMemory
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_SQL: Final = named("roles")
_OPLOG: Final = named("oplog")
_MAX_CANDIDATES: Final = 1_000


class Ownership:
    """Find the op that initialised the mesh, signed by the node that it names, and the steps that follow it.

    Once found they are kept, whatever is written to the database afterwards: only authentic steps are added.
    With a pinned key, one of the owners must have that key: without one, a writer of the database could plant
    an earlier op.
    """

    def __init__(self, store: Store, pinned_key: str | None, memory: StepMemory | None = None) -> None:
        self._store = store
        self._memory = memory
        self._has_recalled = memory is None
        self._pages = Pages(store)
        self.pinned_key = pinned_key
        self._first: LogEntry | None = None
        self._steps: dict[str, LogEntry] = {}  # in force, by their hashes
        self._found: Succession | None = None
        self._mark: str | None = None
        self.lost: list[str] = []
        """The ops of steps that the log has lost."""

    async def succession(self) -> Succession | None:
        """Return all owners as the log has them now, or `None` until a node has initialised the mesh."""
        mark = (await self._store.read(_OPLOG["transferred"], self._store.mesh_id, fresh=True)).value
        if self._found is None or mark != self._mark:
            found = await self._find()
            if found is not None and (self._found is None or found.links != self._found.links):
                await self._report(found)
            self._found, self._mark = found, mark
        return self._found

    async def owner(self) -> Owner | None:
        """Return the present owner, or `None` until a node has initialised the mesh."""
        found = await self.succession()
        return None if found is None else found.owner

    async def initial(self) -> Owner | None:
        """Return the first owner, which never changes, or `None` until a node has initialised the mesh."""
        found = self._found or await self.succession()
        return None if found is None else found.initial

    async def recorded(self) -> Owner | None:
        """Return the owner that the table `mesh_owner` names, which proves nothing."""
        rows = await self._store.read(_SQL["owner"], self._store.mesh_id, fresh=True)
        return Owner._make(rows[0]) if rows else None

    async def signs_crons(self) -> bool:
        """Return whether the mesh has had signed crons from its first op on."""
        await self.initial()
        return self._first is not None and states_signed_crons(self._first)

    async def key(self) -> str | None:
        """Return the key of the present owner, or the pinned one until the mesh has an owner."""
        found = await self.succession()
        return self.pinned_key if found is None else found.key

    async def may_act(self, chain: str, key: str) -> bool:
        """Return whether what this key signs next in this chain is an act of the owner."""
        found = await self.succession()
        return self.pinned_key == key if found is None else found.may_act(chain, key)

    async def witness(self, keys: Sequence[Key] = (), recorded_key: str | None = None) -> ChainWitness:
        """Return a witness that knows the owners."""
        owners = await self.succession() or self.pinned_key
        return ChainWitness(owners, keys, self._store.writer_id.scope_id, recorded_key)

    async def refuse_if_foreign(self) -> None:
        """Raise `BadSettings` if no owner has the pinned key, as the log has it."""
        if self.pinned_key is None or await self.owner() is not None:
            return
        if await self.recorded() is not None or await self._pages.read("initialised", 0, limit=1, fresh=True):
            raise BadSettings(
                f"no op signed with {self.pinned_key} initialises the mesh, but one of another key does",
                hint="check VOX_MESH_OWNER_KEY; if it is right, the log was rewritten",
            )

    def pin(self, key: str) -> None:
        """Believe only a succession in which one owner has this key."""
        self.pinned_key = key
        self.forget()

    def forget(self) -> None:
        """Look again the next time: the database was rolled back, and may have lost the first op.

        Steps of the succession are not forgotten: they prove themselves, and none takes them back.
        """
        self._found = self._first = None

    # --- looking ---------------------------------------------------------------------------------

    async def _find(self) -> Succession | None:
        if not self._has_recalled and self._memory is not None:
            self._steps = {entry.hash: entry for entry in await self._memory.load()}
            self._has_recalled = True
        successions = Successions(self._store.writer_id.scope_id)
        for first in [self._first] if self._first is not None else await self._first_ops():
            successions.hear_first(first)
        heard = {entry.hash: entry for entry in self._steps.values() if successions.hear(entry)}
        in_log: set[str] = set()
        async for entry in self._pages.transfers():
            if successions.hear(entry):
                heard[entry.hash] = entry
            if (known := heard.get(entry.hash)) is not None and known.payload == entry.payload:
                in_log.add(entry.hash)
        found = successions.resolve(self.pinned_key, self._steps)
        if found is None:
            return None
        self._first = successions.first_op(found)
        await self._remember({link: heard[link] for link in found.links[1:]})
        self.lost = [entry.op_id for entry in self._steps.values() if entry.hash not in in_log]
        return found

    async def _remember(self, steps: dict[str, LogEntry]) -> None:
        is_longer = not steps.keys() <= self._steps.keys()
        self._steps = steps
        if is_longer and self._memory is not None:
            await self._memory.keep([*steps.values()])

    async def _first_ops(self) -> list[LogEntry]:
        """Return the ops that initialised the mesh, up to the first that settles who the first owner was."""
        found: list[LogEntry] = []
        after_id = 0
        for _ in range(_MAX_CANDIDATES):
            page = await self._pages.read("initialised", after_id, limit=1, fresh=True)
            if not page:
                break
            after_id = page[0].id
            begun = Succession.begin(page[0], self._store.writer_id.scope_id)
            if begun is not None:
                found.append(page[0])
                if self.pinned_key in (None, begun.initial_key):
                    break
        return found

    async def _report(self, found: Succession) -> None:
        for op_id in self.lost:
            _log.error("succession of the owner missing in the log, still obeyed: op_id=%s", op_id)
        if found.rivals:
            _log.error("succession of the owner contested: owner=%s", found.owner.node_id)
        elif (recorded := await self.recorded()) != found.owner:
            _log.error(
                "recorded owner of the mesh ignored, no signed op backs it: recorded=%s owner=%s",
                None if recorded is None else recorded.public_key,
                found.owner.public_key,
            )
