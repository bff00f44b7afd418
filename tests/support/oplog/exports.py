"""A log with entries of all sorts, and exports of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from tools.homes import FILE
from vox_mesh import Mesh, OpKind
from vox_mesh.errors import Refused
from vox_mesh.node import MeshNode
from vox_mesh.oplog.export import ExportResult, export_log, verify_export
from vox_mesh.store.script import new_key

_NOTE: Final = OpKind("note")
AWKWARD: Final = {
    "number": 1e21,
    "large": float(2**60),
    "small": 5e-324,
    "text": 'é"\\\u2028\x00\x7f"kind":"Anchor"',
    "😀": None,
    "\ufb33": [True, {}, []],
}


async def exported(mesh: Mesh, path: Path) -> ExportResult:
    """The log in a file."""
    return await export_log(mesh.oplog, *mesh.store.mesh_id, path)


async def fill(mesh: MeshNode) -> None:
    """Entries of all sorts: accepted, refused, deferred, sealed, anchored; in two chains."""
    mesh.oplog.register(_NOTE)
    for number in range(3):
        await mesh.oplog.append("note", {"n": number})
    await mesh.oplog.append("note", AWKWARD)
    await mesh.oplog.append("note", {}, deps=[new_key()])
    refused = OpKind("derived", derivation=True)
    mesh.oplog.register(refused)
    with pytest.raises(Refused):
        await mesh.oplog.append("derived", {})
    await mesh.store.write(mesh.oplog.seal_script())


@asynccontextmanager
async def log_of_two_chains(folder: Path) -> AsyncIterator[MeshNode]:
    """A node with a log, which a command has anchored."""
    settings = FILE.settings(folder, None)
    async with Mesh.open(settings) as mesh:
        await fill(mesh)
        async with Mesh.open_command(settings) as command:
            await command.oplog.anchor()
        yield mesh


def problems(path: Path) -> list[str]:
    """What is wrong with the chains of an export."""
    return [chain.problem for chain in verify_export(path).chains if chain.problem is not None]
