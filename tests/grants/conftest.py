"""Fixtures for tests of grants: the owner's node, and another one."""

from __future__ import annotations

from tests.support.nodes.fixtures import other, owner, shared_mesh

__all__ = ["other", "owner", "shared_mesh"]
