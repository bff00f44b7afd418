"""Bearers of agents: short-lived keys that stand for an agent's signature, at one node and in one bar.

A bearer is a window key of the node that issued it, made with a secret that only this process knows. It names
the node, the agent and the public key with which the agent asked for it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vox_mesh.model.rhythm.tempo import Window
from vox_mesh.model.rhythm.window_keys import MARK as KEY_MARK
from vox_mesh.model.rhythm.window_keys import Project, WindowKeyFault, check, issue, role_of

MARK: Final = "vxb1."
"""The prefix of every bearer; its digit is the format version."""

_ROLE: Final = "bearer"


class BearerHolder(NamedTuple):
    """To whom a bearer was issued, and by which node."""

    node_id: str
    public_key: str
    agent: str

    @property
    def role(self) -> str:
        """Return the role in the key. No part has a line break."""
        return "\n".join((_ROLE, *self))


def issue_bearer(secret: str, project: Project, holder: BearerHolder, window: Window) -> str:
    """Return the bearer of an agent for a window: a bar, or a part of it."""
    return MARK + issue(secret, project, holder.role, window).removeprefix(KEY_MARK)


def read_bearer(
    secret: str, text: str, project: Project, node_id: str, now_ms: int
) -> tuple[BearerHolder | None, WindowKeyFault | None]:
    """Return the holder of a bearer, if it is genuine, and its fault, or `None` if it is valid.

    It is valid in its own window only: it is stale from the first moment of the next one.
    """
    key = KEY_MARK + text.removeprefix(MARK)
    kind, *parts = (role_of(key) or "").split("\n", 3)
    if kind != _ROLE or len(parts) != len(BearerHolder._fields):
        return None, WindowKeyFault.WRONG
    holder = BearerHolder(*parts)
    fault = check(secret, key, project, holder._replace(node_id=node_id).role, now_ms, 0)
    return (None if fault is WindowKeyFault.WRONG else holder), fault
