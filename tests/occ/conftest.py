"""Fixtures for tests of optimistic concurrency control: a node that ticks only when a test asks it to."""

from __future__ import annotations

from tests.support.nodes.fixtures import mesh, node_settings, other, owner, settings, shared_mesh

__all__ = ["mesh", "node_settings", "other", "owner", "settings", "shared_mesh"]
