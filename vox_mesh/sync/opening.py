"""Opening a mesh for plain scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import Any

from vox_mesh.mesh import Mesh as AsyncMesh
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.settings import Settings
from vox_mesh.sync.blocking import Block
from vox_mesh.sync.loop_thread import LoopThread


@contextmanager
def opened(manager: Callable[[], AbstractAsyncContextManager[Any]]) -> Iterator[Any]:
    """Open anything async of this package in a loop of its own, for as long as the block runs."""
    with LoopThread() as loop, Block(loop, manager()) as value:
        yield value


class Mesh:
    """A node of the mesh, or a command beside one, for code that does not await."""

    @staticmethod
    def open(
        settings: Settings | None = None, dependencies: Dependencies | None = None
    ) -> AbstractContextManager[Any]:
        """Join the mesh that the settings choose, as a node that ticks until the end."""
        return opened(lambda: AsyncMesh.open(settings, dependencies))

    @staticmethod
    def open_command(
        settings: Settings, dependencies: Dependencies | None = None
    ) -> AbstractContextManager[Any]:
        """Look at the mesh, or write to it, beside its nodes and without becoming one."""
        return opened(lambda: AsyncMesh.open_command(settings, dependencies))
