"""Fixtures: a mesh of two nodes on a file and on a server, and a hostile writer of its database."""

from __future__ import annotations

import pytest

from tests.support.attacks.hostile_writer import HostileWriter
from tests.support.nodes.fixtures import other, owner, shared_mesh
from tests.support.nodes.shared_mesh import SharedMesh

__all__ = ["other", "owner", "shared_mesh"]


@pytest.fixture
def hostile(shared_mesh: SharedMesh) -> HostileWriter:
    """The hostile writer."""
    return HostileWriter(shared_mesh)
