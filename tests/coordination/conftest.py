"""Fixtures: a mesh node on each home in turn, which ticks only when a test asks it to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.authoring import NOTE_KIND
from vox_mesh import Settings
from vox_mesh.mesh import Mesh, MeshNode

_NEVER_S = 3_600.0


@pytest.fixture
def node_settings(settings: Settings) -> Settings:
    """The settings of a node on each home in turn."""
    return settings.model_copy(update={"tick": _NEVER_S})


@pytest.fixture
async def mesh(node_settings: Settings) -> AsyncIterator[MeshNode]:
    """A node on each home in turn, which knows the kind `note`."""
    async with Mesh.open(node_settings) as node:
        node.oplog.register(NOTE_KIND)
        yield node
