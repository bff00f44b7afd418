"""Fixtures: a mesh node on each home in turn, which ticks only when a test asks it to; meshes with a log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.nodes.shared_mesh import DERIVED, SharedMesh
from tests.support.oplog.authoring import NOTE_KIND
from tests.support.oplog.exports import exported, log_of_two_chains
from tests.support.oplog.tampering import NOTE, TamperedLog, open_scene
from tests.support.running.lengths import EVERY_HOME, SHARED_HOMES, cases_in_soak
from tools.homes import FILE, MEMORY, MESH, MESH_REPLICA, HomeCase
from vox_mesh import Settings
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode
from vox_mesh.oplog.export import ExportResult
from vox_mesh.store import new_key

_NEVER_S = 3_600.0
_HOMES = (FILE, *cases_in_soak(MEMORY, MESH, MESH_REPLICA))  # what is found in a log does not depend on it


@pytest.fixture(params=EVERY_HOME, ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """The settings of each home in turn."""
    case: HomeCase = request.param
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    return case.settings(tmp_path, server)


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


# --- a mesh that many share -----------------------------------------------------------------------


@pytest.fixture(params=SHARED_HOMES, ids=str)
def shared_mesh(request: pytest.FixtureRequest, tmp_path: Path) -> SharedMesh:
    """A mesh that many can share, on each home in turn."""
    case: HomeCase = request.param
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    return SharedMesh(case, tmp_path, server, new_key())


@pytest.fixture
async def owner(shared_mesh: SharedMesh) -> AsyncIterator[MeshNode]:
    """The first node of the mesh."""
    async with Mesh.open(shared_mesh.settings("owner")) as node:
        node.oplog.register(NOTE)
        node.oplog.register(DERIVED)
        yield node


@pytest.fixture
async def other(shared_mesh: SharedMesh, owner: MeshNode) -> AsyncIterator[MeshNode]:
    """A node that came later."""
    async with Mesh.open(shared_mesh.settings("other")) as node:
        node.oplog.register(NOTE)
        node.oplog.register(DERIVED)
        yield node


# --- a log to be tampered with --------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=_HOMES, ids=str)
async def one_scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[TamperedLog]:
    """A mesh on each home in turn; it is set up only once, since there are many ways to tamper with it."""
    case: HomeCase = request.param
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    settings = case.settings(tmp_path_factory.mktemp("mesh"), server, node_id="owner")
    async with open_scene(settings) as scene:
        yield scene


@pytest_asyncio.fixture(loop_scope="module")
async def scene(one_scene: TamperedLog) -> AsyncIterator[TamperedLog]:
    """That mesh, as it was in the beginning."""
    try:
        yield one_scene
    finally:
        await one_scene.restore()


# --- a log to be exported -------------------------------------------------------------------------


@pytest.fixture
async def anchored(tmp_path: Path) -> AsyncIterator[MeshNode]:
    """A node with a log of two chains."""
    async with log_of_two_chains(tmp_path) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of such a log."""
    folder = tmp_path_factory.mktemp("original")

    async def make() -> ExportResult:
        async with log_of_two_chains(folder) as mesh:
            return await exported(mesh, folder / "log.jsonl")

    return asyncio.run(make()).path


@pytest.fixture
def log(original: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(original.read_bytes())
    return path
