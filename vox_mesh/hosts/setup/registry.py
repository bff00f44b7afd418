"""The hosts for which hooks can be installed, by name."""

from __future__ import annotations

from typing import Final

from vox_mesh.hosts.setup.hosts.claude import CLAUDE
from vox_mesh.hosts.setup.hosts.codex import CODEX
from vox_mesh.hosts.setup.hosts.copilot import COPILOT
from vox_mesh.hosts.setup.hosts.cursor import CURSOR
from vox_mesh.hosts.setup.hosts.gemini import GEMINI
from vox_mesh.hosts.setup.hosts.host import HookHost
from vox_mesh.hosts.setup.hosts.opencode import OPENCODE

_ALL: Final[tuple[HookHost, ...]] = (CLAUDE, CODEX, GEMINI, CURSOR, COPILOT, OPENCODE)
HOSTS: Final = {host.name: host for host in _ALL}
"""The hosts by the names on the command line."""
