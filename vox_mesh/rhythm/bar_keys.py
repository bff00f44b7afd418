"""Bar keys: credentials of agents that change with every bar, derived from the token that the nodes share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from vox_mesh.errors import BadSettings, BadValue
from vox_mesh.model.documents.documents import short
from vox_mesh.model.rhythm.window_keys import WindowKeyFault, check, issue, window_of_key
from vox_mesh.rhythm.context import RhythmContext

_PURPOSE: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
_ROLE_PREFIX: Final = "agent:"
"""Keeps the keys of agents apart from those of nodes: the relay rejects them."""


class BarKeys:
    """Derives and checks the keys of agents. No key is stored or logged."""

    def __init__(self, context: RhythmContext, shared_token: Callable[[], str | None]) -> None:
        self._context = context
        self._shared_token = shared_token

    def key(self, purpose: str) -> str:
        """Return the key of the current bar for a purpose; of a bar longer than a minute, of its part."""
        context = self._context
        now_ms = context.times.now_ms
        window = window_of_key(context.timeline.window_at(now_ms), now_ms)
        return issue(self._secret(), context.mesh, _role(purpose), window)

    def fault(self, purpose: str, key: str) -> WindowKeyFault | None:
        """Return why a key is rejected for a purpose, or `None` if it is valid."""
        context = self._context
        bars = context.policy.security.revoke_after_bars
        return check(self._secret(), key, context.mesh, _role(purpose), context.times.now_ms, bars)

    def _secret(self) -> str:
        token = self._shared_token()
        if token is None:
            raise BadSettings(
                "keys of bars need a token that all nodes share, and there is none",
                hint="set VOX_MESH_TOKEN; `vox-mesh token random` makes a value",
            )
        return token


def _role(purpose: str) -> str:
    if not _PURPOSE.fullmatch(purpose):
        raise BadValue(
            "purpose of a key must be 1 to 64 letters a-z, digits, dots, dashes and underscores, "
            f"got {short(purpose)}"
        )
    return _ROLE_PREFIX + purpose
