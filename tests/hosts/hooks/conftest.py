"""Fixtures: a node that hosts of agents ask, and a repository that they work in."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.hosts.hooks.hosts import HOSTS, HookedAgent, Host
from tests.support.nodes.serving import ServedNode, serving_api
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.running.repositories import Repository
from tools.homes import FILE
from vox_mesh.store import new_key


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedNode]:
    """A node in a file, and a client of its API; tests edit files of their own."""
    async with serving_api(SharedMesh(FILE, tmp_path_factory.mktemp("mesh"), None, new_key())) as served:
        yield served


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository with a commit."""
    folder = tmp_path / "project"
    folder.mkdir()
    found = Repository(folder, {"PATH": os.environ["PATH"]})
    found.git("init", "--quiet")
    found.write("README.md")
    found.git("add", "--all")
    found.commit()
    return found


@pytest.fixture
def project(repository: Repository) -> Path:
    """The root of the repository."""
    return repository.folder


@pytest.fixture
def name() -> str:
    """A file that no other test edits."""
    return f"{new_key().lower()}.py"


@pytest.fixture(params=list(HOSTS))
def host(request: pytest.FixtureRequest) -> Host:
    """Each host in turn."""
    return HOSTS[request.param]


@pytest.fixture
def bob(served: ServedNode, host: Host, project: Path) -> HookedAgent:
    """An agent in that host."""
    return HookedAgent(served, host, project)


@pytest.fixture
def claude(served: ServedNode, project: Path) -> HookedAgent:
    """An agent in Claude Code: where the host makes no difference."""
    return HookedAgent(served, HOSTS["claude"], project)
