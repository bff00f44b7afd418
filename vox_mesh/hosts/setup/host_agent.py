"""The name of a host's agent, which is also the name of a file and a word of a command."""

from __future__ import annotations

import re
from typing import Final

from vox_mesh.errors import BadValue
from vox_mesh.model.messages.records import checked_agent

_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def checked_host_agent(name: str) -> str:
    """Return the name of a host's agent. Raises `BadValue` unless the script of hooks finds a token by it."""
    if not _PLAIN.fullmatch(name):
        raise BadValue(
            f"agent of a host must have 1 to 64 letters, digits, `.`, `_` and `-`, got {name[:80]!r}",
            hint="pass another --agent",
        )
    return checked_agent(name)
