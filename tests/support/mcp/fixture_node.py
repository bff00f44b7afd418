"""A node with the fixtures of the suite: `python -m tests.support.mcp.fixture_node up`, as `vox-mesh up`."""

from __future__ import annotations

from tests.support.mcp.fixtures.addition import add_fixtures
from vox_mesh.cli import main
from vox_mesh.hosts.mcp.server import PARTS

if __name__ == "__main__":
    PARTS.append(add_fixtures)
    main()
