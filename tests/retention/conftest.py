"""Fixtures: the same nodes as for messages, and a mesh whose clock a test advances."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.messages.conftest import any_node, crowd, local, named, node, there
from vox_mesh.testing import MeshHarness

__all__ = ["any_node", "crowd", "harness", "local", "named", "node", "there"]


@pytest.fixture
async def harness() -> AsyncIterator[MeshHarness]:
    """Nodes in memory, and a clock that a test advances."""
    async with MeshHarness() as harness:
        yield harness
