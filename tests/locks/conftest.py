"""Fixtures: the homes on which locks differ. The ways to a server don't matter once one lock was taken."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.nodes.fixtures import mesh, node_settings
from tests.support.oplog.authoring import RestartableNodes, scene
from tests.support.running.lengths import EVERY_HOME, LOCAL_AND_REPLICA, SHARED_HOMES
from tools.homes import HomeCase
from vox_mesh import Settings

__all__ = ["mesh", "node_settings"]


def _settings(request: pytest.FixtureRequest, folder: Path) -> Settings:
    case: HomeCase = request.param
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    return case.settings(folder, server, tick="1h")


@pytest.fixture(params=LOCAL_AND_REPLICA, ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """The settings of each home in turn."""
    return _settings(request, tmp_path)


@pytest.fixture(params=EVERY_HOME, ids=str)
def any_settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """The settings of each home, and of each way to a server."""
    return _settings(request, tmp_path)


@pytest.fixture(params=SHARED_HOMES, ids=str)
def common_settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """The settings of each home that several nodes share."""
    return _settings(request, tmp_path)


@pytest.fixture
async def there() -> AsyncIterator[RestartableNodes]:
    """A database in memory, behind a gate, for any number of nodes."""
    async with scene() as there:
        yield there
