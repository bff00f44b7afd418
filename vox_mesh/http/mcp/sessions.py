"""Sessions of older protocol revisions: bounded for each credential, and in total."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

IDLE_S: Final = 4 * 3_600.0
"""How long a session is kept without a request."""

MAX_SESSIONS: Final = 256
_OF_EACH: Final = 16


class McpSession(NamedTuple):
    """A session, and the credential that has opened it."""

    session_id: str
    owner: str


class SessionTable:
    """Which credential has opened which sessions, the least recently used first."""

    def __init__(self, of_each: int = _OF_EACH, total: int = MAX_SESSIONS) -> None:
        self._of_each = of_each
        self._total = total
        self._owners: OrderedDict[str, str] = OrderedDict()
        self._opening: Counter[str] = Counter()

    def add(self, session_id: str, owner: str) -> None:
        """Note that a credential has opened a session."""
        self._owners[session_id] = owner

    def use(self, session_id: str, owner: str) -> None:
        """Note that a session is used; one that its credential has not opened is ignored."""
        if self._owners.get(session_id) == owner:
            self._owners.move_to_end(session_id)

    def forget(self, session_id: str, owner: str) -> None:
        """Forget a session of a credential that has ended."""
        if self._owners.get(session_id) == owner:
            del self._owners[session_id]

    @contextmanager
    def opening(self, owner: str) -> Iterator[bool]:
        """Count a session that is being opened; return whether its credential may open as many at once."""
        self._opening[owner] += 1
        try:
            yield self._opening[owner] <= self._of_each
        finally:
            self._opening[owner] -= 1
            self._opening += Counter()  # without those at zero

    def make_room(self, owner: str) -> list[McpSession]:
        """Forget and return the sessions to end to leave room for the ones that a credential is opening.

        They are its least recently used ones, or else the least recently used of all.
        """
        known = [McpSession(*each) for each in self._owners.items()]
        own = [each for each in known if each.owner == owner]
        surplus = own[: max(0, len(own) - self._of_each + self._opening[owner])]
        if not surplus:
            surplus = known[: max(0, len(known) - self._total + self._opening.total())]
        for each in surplus:
            self.forget(*each)
        return surplus
