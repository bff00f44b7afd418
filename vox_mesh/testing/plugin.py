"""The pytest plugin: `vox_town`, `vox_memory_mesh` and `vox_clock`, for tests that do not await."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vox_mesh import sync


@pytest.fixture
def vox_town(tmp_path: Path) -> Iterator[sync.Town]:
    """A mesh in memory: `vox_town.node("a")` is a node of it, and `vox_town.kill("a")` ends it for good."""
    from vox_mesh.sync import opened  # whoever has no such test pays nothing
    from vox_mesh.testing.town import Town

    with opened(lambda: Town(tmp_path / "vox-town")) as town:
        yield town


@pytest.fixture
def vox_memory_mesh(vox_town: sync.Town) -> sync.MeshNode:
    """A node on the memory home; other nodes of `vox_town` share its database."""
    return vox_town.node()


@pytest.fixture
def vox_clock(vox_town: sync.Town) -> sync.TownClock:
    """The time of the nodes and of their database: `vox_clock.turn("5m")`."""
    return vox_town.clock
