"""The work of a command, done beside the nodes of the mesh."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from vox_mesh.cli.support.start import start_shared
from vox_mesh.mesh import Mesh
from vox_mesh.settings import Settings

Result = TypeVar("Result")
Work = Callable[[Mesh], Coroutine[Any, Any, Result]]


def run_beside(command: str, work: Work[Result]) -> Result:
    """Do the work of a command that makes no sense on the memory home; what comes of it."""
    return asyncio.run(beside(start_shared(command), work))


async def beside(settings: Settings, work: Work[Result]) -> Result:
    """Do it on the mesh that the settings choose."""
    async with Mesh.open_command(settings) as mesh:
        return await work(mesh)
