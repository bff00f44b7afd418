"""Fixtures: the same nodes as for jobs."""

from __future__ import annotations

from tests.jobs.conftest import local, named, node, there

__all__ = ["local", "named", "node", "there"]
