"""Fixtures: groups of nodes, as for messages."""

from __future__ import annotations

from tests.messages.conftest import crowd, local, named, there

__all__ = ["crowd", "local", "named", "there"]
