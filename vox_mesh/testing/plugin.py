"""The pytest plugin: fixtures `vox_mesh_harness`, `vox_memory_mesh`, `vox_manual_clock` for plain tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vox_mesh.observability.deprecation import warn_renamed

if TYPE_CHECKING:
    from vox_mesh import sync


@pytest.fixture
def vox_mesh_harness(tmp_path: Path) -> Iterator[sync.MeshHarness]:
    """A mesh in memory: `.node("a")` starts a node or returns it, `.kill("a")` stops it as a crash would."""
    from vox_mesh.sync import opened  # imported here: a run without such tests does not pay for it
    from vox_mesh.testing.harness import MeshHarness

    with opened(lambda: MeshHarness(tmp_path / "vox-mesh-harness")) as harness:
        yield harness


@pytest.fixture
def vox_memory_mesh(vox_mesh_harness: sync.MeshHarness) -> sync.MeshNode:
    """One node on the memory backend; other nodes of `vox_mesh_harness` share its database."""
    return vox_mesh_harness.node()


@pytest.fixture
def vox_manual_clock(vox_mesh_harness: sync.MeshHarness) -> sync.ManualClock:
    """The time of the nodes and of their database: `vox_manual_clock.advance("5m")`."""
    return vox_mesh_harness.clock


@pytest.fixture
def vox_town(vox_mesh_harness: sync.MeshHarness) -> sync.MeshHarness:
    """The fixture `vox_mesh_harness` under its old name. Deprecated."""
    warn_renamed("the fixture vox_town", "vox_mesh_harness")
    return vox_mesh_harness


@pytest.fixture
def vox_clock(vox_manual_clock: sync.ManualClock) -> sync.ManualClock:
    """The fixture `vox_manual_clock` under its old name. Deprecated."""
    warn_renamed("the fixture vox_clock", "vox_manual_clock")
    return vox_manual_clock
