"""Fixtures: a node with a scripted agent, where the home makes no difference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.jobs.agent_jobs import AgentDesk, Pids, make_repository
from vox_mesh.node import MeshNode


@pytest.fixture
def desk(local: MeshNode, tmp_path: Path) -> AgentDesk:
    """One node; a test configures its agent."""
    return AgentDesk(local, tmp_path)


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Pids]:
    """Where an agent reports its processes."""
    found = Pids(tmp_path)
    yield found
    found.close()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit."""
    return make_repository(tmp_path)
