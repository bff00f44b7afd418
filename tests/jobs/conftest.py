"""Fixtures: the same nodes as for messages, on the homes on which jobs differ.

`node` is one on each home in turn, `any_node` by each way to a server too, `local` one where the home makes
no difference, `there` a database on which nodes begin and end, and `crowd` several nodes on each home.
"""

from __future__ import annotations

from tests.messages.conftest import any_node, crowd, local, named, node, there

__all__ = ["any_node", "crowd", "local", "named", "node", "there"]
