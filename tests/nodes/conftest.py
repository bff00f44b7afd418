"""Fixtures for tests of nodes: a node that ticks only when a test asks it to."""

from __future__ import annotations

from tests.support.nodes.fixtures import anchored, mesh, node_settings, other, owner, settings, shared_mesh

__all__ = ["anchored", "mesh", "node_settings", "other", "owner", "settings", "shared_mesh"]
