"""The keys of agents: a file for each in the home, readable by its user only."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

from vox_mesh.errors import NotKnown
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.nodes.key_file import load_or_create_key
from vox_mesh.store.files import make_private

_FOLDER: Final = "agents"
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def agent_key(home: Path, agent: str, *, create: bool) -> SigningKey:
    """Return the key of an agent, made at first use if `create`; raise `NotKnown` if there is none."""
    path = agent_key_file(home, agent)
    if not create and not path.exists():
        raise NotKnown(
            f"key of agent {agent!r} not found: {path} does not exist",
            hint="run `vox-mesh agents init` on the machine of the agent",
        )
    make_private(path.parent)
    return load_or_create_key(path, hint=f"move {path} away and run `vox-mesh agents init {agent}` again")


def agent_key_file(home: Path, agent: str) -> Path:
    """Return the file that the key of an agent is kept in, whether it exists or not."""
    # A name may hold anything that can be printed, so that it is no file name.
    name = agent if _PLAIN.fullmatch(agent) else hashlib.sha256(agent.encode()).hexdigest()
    return home / _FOLDER / f"{name}.pem"
