"""Fixtures for tests of the op log: a node that ticks only when a test asks it to."""

from __future__ import annotations

from tests.support.nodes.fixtures import (
    anchored,
    log,
    mesh,
    node_settings,
    one_scene,
    original,
    other,
    owner,
    scene,
    settings,
    shared_mesh,
)

__all__ = [
    "anchored",
    "log",
    "mesh",
    "node_settings",
    "one_scene",
    "original",
    "other",
    "owner",
    "scene",
    "settings",
    "shared_mesh",
]
