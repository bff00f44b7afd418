"""Nodes on a database whose clock a test can set."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.nodes.stepped_databases import SteppedDatabase
from tests.support.oplog.authoring import RestartableNodes, scene
from vox_mesh.errors import DatabaseClockJumped
from vox_mesh.node import MeshNode

_ROUNDS: Final = 10

DatabaseOf = Callable[[Path], AbstractAsyncContextManager[SteppedDatabase]]


class SteppedMesh(NamedTuple):
    """Nodes on a database whose clock can be set."""

    database: SteppedDatabase
    there: RestartableNodes
    nodes: Sequence[MeshNode]

    async def settle(self, *nodes: MeshNode) -> None:
        """Have nodes tick until none of them finds anything wrong with the database's clock."""
        for _ in range(_ROUNDS):
            if all([await ticks(node) for node in nodes or self.nodes]):
                return
        raise AssertionError("the nodes did not agree")


async def ticks(node: MeshNode) -> bool:
    try:
        await node.run_once()
    except DatabaseClockJumped:
        return False
    return True


@asynccontextmanager
async def mesh_of(database_of: DatabaseOf, folder: Path, names: str = "abc") -> AsyncIterator[SteppedMesh]:
    """This many nodes, each with a first tick."""
    async with database_of(folder) as database, scene(database.engine) as there, AsyncExitStack() as living:
        nodes = [await living.enter_async_context(there.node(name)) for name in names]
        for node in nodes:
            await node.run_once()
        yield SteppedMesh(database, there, nodes)
