"""Two writers of one row: what the one has read, the other has changed since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vox_mesh import Mesh, Script, Statement, Written
from vox_mesh.occ.tables import RowAddress

MEMORIES: Final = "memories"


def at(name: str) -> dict[str, str]:
    """The key of a memory."""
    return {"memory_key": name}


async def row(mesh: Mesh, name: str) -> dict[str, Any]:
    """A memory that is there."""
    found = await mesh.occ.read(MEMORIES, at(name))
    assert found is not None
    return found


async def memory(mesh: Mesh, name: str, **values: Any) -> dict[str, Any]:
    """A new memory."""
    assert isinstance(await mesh.occ.write(MEMORIES, at(name), values, None), Written)
    return await row(mesh, name)


async def overtaken(mesh: Mesh, name: str, **values: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A memory as it was read, and as another has made it since."""
    base = await memory(mesh, name, content="base", tags="base", importance=1)
    changes = values or {"content": "right"}
    assert isinstance(await mesh.occ.write(MEMORIES, at(name), changes, base), Written)
    return base, await row(mesh, name)


async def delete(mesh: Mesh, name: str) -> None:
    """Delete a memory, as a client without versions does."""
    gone = "DELETE FROM memories WHERE scope_id = ? AND repository_id = ? AND memory_key = ?"
    await mesh.store.write(Script(Statement(gone, (*mesh.store.mesh_id, name))))


def moving(mesh: Mesh, times: int, values: Mapping[str, Any]) -> None:
    """Have another write the row each time that it was looked at, this many times."""
    versions = mesh.occ._versions
    read, left = versions.read, times

    async def read_and_move(address: RowAddress) -> dict[str, Any] | None:
        nonlocal left
        seen = await read(address)
        if left:
            left -= 1
            new = {name: f"{value} {left}" for name, value in values.items()}
            script = Script(address.put(new, seen, await versions.next(seen)))
            await mesh.store.write(script)
        return seen

    versions.read = read_and_move  # type: ignore[method-assign]
