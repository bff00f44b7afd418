"""Fixtures: the same nodes as for jobs, and a mesh whose clock a test advances."""

from __future__ import annotations

from tests.jobs.conftest import any_node, crowd, local, node, there
from tests.retention.conftest import harness

__all__ = ["any_node", "crowd", "harness", "local", "node", "there"]
