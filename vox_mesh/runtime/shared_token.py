"""The token that the nodes of a mesh share."""

from __future__ import annotations

from vox_mesh.nodes.home_token import find_token
from vox_mesh.settings import Settings


def shared_token(settings: Settings) -> str | None:
    """Return the token that nodes share: VOX_MESH_TOKEN, or that of the home; `None` if there is neither."""
    return find_token(settings.home_dir) if settings.token is None else settings.token.get_secret_value()
