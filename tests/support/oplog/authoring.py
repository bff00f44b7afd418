"""Nodes on one real database behind a gate: whole, but for the tasks that would tick by themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.support.store.combining import LONG_S, at_once
from tests.support.store.gate import GatedEngine
from vox_mesh import Settings, load_settings
from vox_mesh.heartbeat.presence import Activity, Presence
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.backends import Backend
from vox_mesh.model.nodes.store_memory import StoreMemory
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies, MeshClock
from vox_mesh.nodes.identity import Identity, temporary_identity
from vox_mesh.oplog.op_kinds import OpKind
from vox_mesh.oplog.witness import SharedPlace, StoreWitness
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.batch import Batch
from vox_mesh.store.engine import Engine
from vox_mesh.store.engines.memory import MemoryEngine
from vox_mesh.store.script import Op, Script, Statement, WriterId
from vox_mesh.store.spool.spool import Spool
from vox_mesh.store.spool.spool_queue import SpoolQueue
from vox_mesh.store.store import Store
from vox_mesh.store.write.breaker import Breaker

NOTE: Final = "note"
NOTE_KIND: Final = OpKind(NOTE, appendable=True)


class LastingGate(GatedEngine):
    """A gate to a database that outlives the stores which use it, as a server does."""

    async def close(self) -> None:
        """The database stays."""

    async def land(self, batch: Batch) -> bool:
        """Have a batch that was given up arrive after all; whether it took effect."""
        return (await self._engine.run(batch)).committed


class RestartableNodes:
    """A database on which nodes begin and end; a node keeps its key from one to the next."""

    def __init__(self, engine: Engine) -> None:
        self.gate = LastingGate(engine)
        self._identities: dict[str, Identity] = {}
        self._memories: dict[str, StoreMemory] = {}
        self._settings: Settings = load_settings(_env_file=None)

    @asynccontextmanager
    async def node(
        self,
        node_id: str = "a",
        dependencies: Dependencies | None = None,
        *,
        breaker: Breaker | None = None,
        spool: Path | None = None,
        remembers: bool = False,
    ) -> AsyncIterator[MeshNode]:
        """A new incarnation of a node. It ends as a killed process does, unless the test closes it.

        `remembers`: it knows what its earlier incarnations have seen of the database.
        """
        dependencies = Dependencies() if dependencies is None else dependencies
        identity = self._identities.setdefault(node_id, temporary_identity(node_id))
        writer_id = WriterId("", "default", node_id)
        clock = MeshClock(dependencies)
        presence = Presence(identity, writer_id, clock, place=node_id, tick_s=5.0, activity=Activity())
        witness = StoreWitness(SharedPlace(self._memories, node_id)) if remembers else None
        author = OpLogWriter(
            lambda: identity, writer_id, clock, presence, witness, on_rejoin=lambda: node.start_rejoin()
        )
        queue = None if spool is None else SpoolQueue(Spool(spool, 2**20), timeout=LONG_S)
        home = Backend.MEMORY if spool is None else Backend.SERVER
        store = Store(
            home, self.gate, writer_id, timeout=LONG_S, breaker=breaker, spool_queue=queue, interceptor=author
        )
        store._caller._sleep = at_once
        await store.begin()
        node = MeshNode(store, author, clock, presence, self._settings, dependencies)
        node.oplog.register(NOTE_KIND)
        try:
            yield node
        finally:
            await store.close()


@asynccontextmanager
async def scene(engine: Engine | None = None) -> AsyncIterator[RestartableNodes]:
    """A database, in memory if no other is given."""
    engine = MemoryEngine() if engine is None else engine
    there = RestartableNodes(engine)
    try:
        yield there
    finally:
        there.gate.release()
        await engine.close()


def noted(*statements: Statement, key: str | None = None, payload: str = "{}") -> Script:
    """A script with a note for the log."""
    return Script(*statements, key=key, op=Op(NOTE, payload))


async def own_chain(mesh: Mesh) -> list[LogEntry]:
    """The entries of the node's own chain."""
    return [entry async for page in mesh.oplog.entries(mesh.identity.chain) for entry in page]


async def notes(mesh: Mesh) -> list[LogEntry]:
    """The notes that this node has in the log."""
    return [entry for entry in await own_chain(mesh) if entry.kind == NOTE]


async def assert_sound(mesh: Mesh) -> None:
    """No chain shows anything wrong."""
    problems = [chain for chain in await mesh.oplog.verify() if chain.problem is not None]
    assert not problems, problems


def ids(entries: Sequence[LogEntry]) -> list[str]:
    """Which ops these are."""
    return [entry.op_id for entry in entries]
