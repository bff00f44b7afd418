"""Fixtures for tests of commands: settings of the homes that processes share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.homes import FILE, MESH, HomeCase
from vox_mesh import Settings


@pytest.fixture(params=[FILE, MESH], ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """The settings of both homes that commands share, in turn."""
    case: HomeCase = request.param
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    return case.settings(tmp_path, server)


@pytest.fixture
def on_file(tmp_path: Path) -> Settings:
    """The settings of the file home."""
    return FILE.settings(tmp_path, None)
