"""What needs a person."""

from __future__ import annotations

from typing import Final

from vox_mesh.http.api.operations import Operations
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.live.attention import Attention, attention

ATTENTION: Final = Operations("attention")


@ATTENTION.get("/v1/attention")
async def show_attention(mesh: MeshServices) -> Attention:
    """Show what needs a person, most urgent first: at most 200 items, and the counts by kind."""
    return await attention(mesh)
