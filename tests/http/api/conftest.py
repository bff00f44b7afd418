"""Fixtures: a node that is asked over HTTP, once for all tests of a file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cli.conftest import VoxCommand
from tests.support.nodes.serving import ServedNode, serving_api
from tests.support.nodes.shared_mesh import SharedMesh
from tools.homes import FILE
from vox_mesh.store import new_key


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedNode]:
    """A node in a file, and a client of its API; tests name kinds of their own."""
    shared_mesh = SharedMesh(FILE, tmp_path_factory.mktemp("mesh"), None, new_key())
    async with serving_api(shared_mesh, worker_exec=True) as served:
        yield served


@pytest.fixture
def kind() -> str:
    """A kind of job that no other test has."""
    return f"test.{new_key().lower()}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def neighbour(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[ServedNode, VoxCommand]]:
    """A node with an API, and commands on the same mesh."""
    folder: Path = tmp_path_factory.mktemp("mesh")
    async with serving_api(SharedMesh(FILE, folder, None, "")) as served:
        variables = {
            "VOX_MESH_ENABLED": "1",
            "VOX_DB_PATH": str(folder / "shared.db"),
            "VOX_MESH_HOME": str(folder / "ann" / "vox"),
            "VOX_MESH_NODE_ID": "ann",
        }
        yield served, VoxCommand(folder, **variables)
