"""A real node with a socket for agents, and a client of it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.nodes.shared_mesh import SharedMesh
from tools.homes import FILE
from vox_mesh.client import AgentClient
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode
from vox_mesh.store import new_key


@pytest.fixture
async def node(folder: Path) -> AsyncIterator[MeshNode]:
    """A node on which this user is the agent `coder`."""
    shared_mesh = SharedMesh(FILE, folder, None, new_key(), has_relay=True)
    settings = shared_mesh.settings(
        "ann", agent_socket=folder / "agents.sock", agent_uids=f"{os.getuid()}=coder"
    )
    async with Mesh.open(settings) as node:
        yield node


@pytest.fixture
async def client(node: MeshNode, folder: Path) -> AsyncIterator[AgentClient]:
    """A client of the agent `coder`."""
    async with AgentClient.open(f"unix:{folder / 'agents.sock'}", "coder") as client:
        yield client
