"""The tokens of agents for their hosts: a file for each in the home, readable by its user only."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from vox_mesh.errors import BadSettings
from vox_mesh.nodes.agent_keys import agent_key_file

_MAX_BYTES: Final = 4_096
_OTHER_USERS: Final = 0o077


def agent_token_file(home: Path, agent: str) -> Path:
    """Return the file that the token of an agent is kept in, whether it exists or not."""
    return agent_key_file(home, agent).with_suffix(".token")


def find_agent_token(home: Path, agent: str) -> str | None:
    """Return the token of an agent, or `None`. Raises `BadSettings` if other users can read its file."""
    path = agent_token_file(home, agent)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadSettings(f"{path} can't be read: {error.strerror}", hint="remove it") from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) & _OTHER_USERS:
            raise BadSettings(
                f"{path} must be a file that only its user can read", hint=f"run `chmod 600 {path}`"
            )
        return file.read(_MAX_BYTES).decode(errors="replace").strip() or None
