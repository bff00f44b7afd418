"""FastAPI: what Starlette has, and the mesh as a dependency: `async def read(mesh: MeshDep)`."""

from __future__ import annotations

from typing import Annotated

from vox_mesh.errors import BadSettings
from vox_mesh.integrations.starlette import answer_errors, mesh_lifespan, mesh_of
from vox_mesh.node import MeshNode

try:
    from fastapi import Depends
except ModuleNotFoundError as missing:
    raise BadSettings("FastAPI is not installed", hint="pip install 'vox-mesh[fastapi]'") from missing

__all__ = ["MeshDep", "answer_errors", "mesh_lifespan", "mesh_of"]

MeshDep = Annotated[MeshNode, Depends(mesh_of)]
"""The mesh, as a parameter of a path operation or of another dependency."""
