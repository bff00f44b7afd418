"""Fixtures: two nodes that can talk, once for all tests of a file that leave them as they were."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.messages.relaying import Pair, open_pair
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.running.lengths import SHARED_HOMES
from tools.homes import FILE, HomeCase
from vox_mesh.store import new_key


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=SHARED_HOMES, ids=str)
async def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pair]:
    """Two nodes, on each home that can be shared in turn."""
    case: HomeCase = request.param
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    async with open_pair(
        SharedMesh(case, tmp_path_factory.mktemp("mesh"), server, new_key(), has_relay=True)
    ) as pair:
        yield pair


@pytest.fixture(params=SHARED_HOMES, ids=str)
def shared_mesh(request: pytest.FixtureRequest, tmp_path: Path) -> SharedMesh:
    """A mesh of the test's own, on each home that can be shared in turn."""
    case: HomeCase = request.param
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    return SharedMesh(case, tmp_path, server, new_key(), has_relay=True)


@pytest.fixture
def village(tmp_path: Path) -> SharedMesh:
    """A mesh of the test's own, in a file: where the home makes no difference."""
    return SharedMesh(FILE, tmp_path, None, new_key(), has_relay=True)


@pytest.fixture
async def own_pair(shared_mesh: SharedMesh) -> AsyncIterator[Pair]:
    """Two nodes of the test's own."""
    async with open_pair(shared_mesh) as pair:
        yield pair


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def neighbours(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """Two nodes in a file."""
    async with open_pair(
        SharedMesh(FILE, tmp_path_factory.mktemp("mesh"), None, new_key(), has_relay=True)
    ) as pair:
        yield pair
