"""Search for things of the mesh by a part of their names."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from vox_mesh.http.api.operations import Operations, RequestModel
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.find import FindingsView, find_things

FIND: Final = Operations("find")


class FindQuery(RequestModel):
    """What to look for."""

    q: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00]*$")]


@FIND.get("/v1/find")
async def find_by_text(mesh: MeshServices, query: FindQuery) -> FindingsView:
    """Find jobs, agents, nodes, kinds, locks, threads and open conflicts by a text; at most 20."""
    return await find_things(mesh, query.q)
