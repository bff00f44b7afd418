"""Reserved names of agents: of the mesh itself, which needs no grant, and of people at a console."""

from __future__ import annotations

import re
from typing import Final

from vox_mesh.errors import BadValue

MESH_AGENT: Final = "mesh"
"""The agent of the mesh itself."""

PERSON: Final = "person:"
"""The beginning of the names in which people act through the console of a node, with the node's rights."""

_PERSON_NAME: Final = re.compile(r"\w[\w.-]{0,63}")


def refuse_mesh_agent(name: str) -> None:
    """Raise `BadValue` for the name of the mesh itself."""
    if name == MESH_AGENT:
        raise BadValue(
            f"agent must not be {MESH_AGENT!r}: only the mesh itself acts in this name",
            hint="choose another name",
        )


def refuse_person_agent(name: str) -> None:
    """Raise `BadValue` for the name of a person, which no agent can have."""
    if name.startswith(PERSON):
        raise BadValue(
            f"agent must not begin with {PERSON!r}, got {name!r}: people act in these names",
            hint="choose another name",
        )


def person_agent(name: str) -> str:
    """Return the name in which a person acts; raise `BadValue` if the person's name is invalid."""
    if not _PERSON_NAME.fullmatch(name):
        raise BadValue(
            f"name must be 1 to 64 letters, digits, dots, dashes and underscores, got {name[:64]!r}",
            hint="begin it with a letter or a digit, such as alice",
        )
    return PERSON + name


def safe_person_name(text: str) -> str:
    """Return the valid name of a person that is nearest to a text, or an empty one."""
    return re.sub(r"[^\w.-]+", "-", text).strip("._-")[:64]
