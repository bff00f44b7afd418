"""Codes for signing in: each can be used once, within a minute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from vox_mesh.http.console.sessions import SignedInBy, digest, new_secret

LASTS_S: Final = 60
"""How long a code can be used."""

MAX_CODES: Final = 32
"""The codes that wait. Another one replaces the oldest of the lowest rank, and none of a higher one."""


class Invitation(NamedTuple):
    """Who may sign in with a code, and with which rights."""

    person: str
    by: SignedInBy
    is_read_only: bool


class SignInCodes:
    """The codes that were issued and not used yet, the oldest first."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._waiting: dict[bytes, tuple[int, Invitation]] = {}

    def issue(self, invitation: Invitation) -> str | None:
        """Return a new code, or `None` if there is no room for it."""
        now_ms, rank = self._now_ms(), invitation.by.rank
        self._waiting = {key: each for key, each in self._waiting.items() if now_ms < each[0]}
        if len(self._waiting) >= MAX_CODES:
            oldest, (_, replaced) = min(self._waiting.items(), key=lambda each: each[1][1].by.rank)
            if replaced.by.rank > rank:
                return None
            del self._waiting[oldest]
        code = new_secret()
        self._waiting[digest(code)] = now_ms + LASTS_S * 1_000, invitation
        return code

    def use(self, code: str) -> Invitation | None:
        """Return who may sign in with a code, which is used by that; `None` if it can't be used."""
        until_ms, invitation = self._waiting.pop(digest(code), (0, None))
        return invitation if self._now_ms() < until_ms else None

    def clear(self) -> None:
        """Forget all codes."""
        self._waiting.clear()
