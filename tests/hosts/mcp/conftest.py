"""Fixtures: a node with MCP, once for all tests of a file."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.hosts.mcp_clients import McpNode, serving_mcp
from tests.support.nodes.shared_mesh import SharedMesh
from tools.homes import FILE
from vox_mesh.store import new_key


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[McpNode]:
    """The owner's node."""
    shared_mesh = SharedMesh(FILE, tmp_path_factory.mktemp("mesh"), None, new_key())
    async with serving_mcp(shared_mesh) as served:
        yield served
