"""Fixtures: a mesh of two nodes on a file and on a server, and a hostile writer of its database."""

from __future__ import annotations

import pytest

from tests.support.attacks.hostile_writer import HostileWriter
from tests.support.nodes.fixtures import other, owner, shared_mesh
from tests.support.nodes.shared_mesh import SharedMesh
from vox_mesh.http.limits import RefusalBrake

__all__ = ["other", "owner", "shared_mesh"]


@pytest.fixture
def hostile(shared_mesh: SharedMesh) -> HostileWriter:
    """The hostile writer."""
    return HostileWriter(shared_mesh)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which clients are slowed after refusals; none of them passes."""
    slowed: list[float] = []

    async def pause(seconds: float) -> None:
        slowed.append(seconds)

    brake = RefusalBrake.__init__
    monkeypatch.setattr(
        RefusalBrake, "__init__", lambda self: brake(self, monotonic=lambda: 0.0, sleep=pause)
    )
    return slowed
