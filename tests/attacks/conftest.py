"""Fixtures: a mesh of two nodes on a file and on a server, and a hostile writer of its database."""

from __future__ import annotations

import pytest

from tests.support.attacks.hostile_writer import HostileWriter
from tests.support.nodes.fixtures import other, owner, town
from tests.support.nodes.town import Town

__all__ = ["other", "owner", "town"]


@pytest.fixture
def hostile(town: Town) -> HostileWriter:
    """The hostile writer."""
    return HostileWriter(town)
