"""The reserved name of an agent: in it the mesh itself acts, which needs no grant."""

from __future__ import annotations

from typing import Final

from vox_mesh.errors import BadValue

MESH_AGENT: Final = "mesh"
"""The agent of the mesh itself."""


def refuse_mesh_agent(name: str) -> None:
    """Raise `BadValue` for the name of the mesh itself."""
    if name == MESH_AGENT:
        raise BadValue(
            f"agent must not be {MESH_AGENT!r}: only the mesh itself acts in this name",
            hint="choose another name",
        )
