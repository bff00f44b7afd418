"""Sessions of hosts, as a node remembers them: of an agent, what it was shown, and its locks.

The memory is bounded and lost with the node: then leases end what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from vox_mesh.model.base.recent import Recent
from vox_mesh.model.locks.records import Lock
from vox_mesh.model.rhythm.tokens import NO_TOKENS, TokenUsage

_MAX_SESSIONS: Final = 1_024
_OF_EACH: Final = 32
"""The sessions of one agent that are remembered: an agent that begins many forgets its own."""

_MAX_LOCKS: Final = 1_000
_LIVE_MS: Final = 30 * 60_000
"""A session that sent no event for this time no longer counts as live."""


@dataclass
class HookSession:
    """A session of an agent in its host."""

    agent: str
    session_id: str
    seen_ms: int = 0
    beaten_ms: int = 0
    """When its last heartbeat was written."""

    shown_ms: int = 0
    """When it was last shown messages."""

    shown: Recent[str, None] = field(default_factory=lambda: Recent(_MAX_LOCKS))
    """The messages that it was shown."""

    reminder: str = ""
    """What it was reminded of last."""

    charged: TokenUsage = NO_TOKENS
    """The tokens of it that were charged."""

    locks: Recent[str, tuple[str, int]] = field(default_factory=lambda: Recent(_MAX_LOCKS))
    """The locks that were acquired for its edits: a key and the token, by request."""

    def add(self, lock: Lock) -> None:
        """Remember a lock that was acquired for an edit."""
        self.locks[lock.request_id] = lock.keys[0], lock.fence_token

    def may(self, since_ms: int, now_ms: int, every_ms: int) -> bool:
        """Return whether something may be done again that was last done at `since_ms`."""
        return not since_ms or not 0 <= now_ms - since_ms < every_ms


class HookSessions:
    """The sessions that a node knows."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._known: Recent[tuple[str, str], HookSession] = Recent(_MAX_SESSIONS)

    def seen(self, agent: str, session_id: str) -> HookSession:
        """Return the session of an agent, which has just sent an event."""
        key = agent, session_id
        session = self._known.get(key)
        if session is None:
            session = HookSession(agent, session_id)
            self._make_room(agent)
        session.seen_ms = self._now_ms()
        self._known[key] = session
        return session

    def _make_room(self, agent: str) -> None:
        """Forget the oldest sessions of an agent, so that it can begin another."""
        own = [each for each in self._known if each[0] == agent]
        for each in own[: max(0, len(own) - _OF_EACH + 1)]:
            del self._known[each]

    def end(self, session: HookSession) -> bool:
        """Forget a session; return whether its agent has no other live one."""
        self._known.pop((session.agent, session.session_id), None)
        now_ms = self._now_ms()
        return not any(
            each.agent == session.agent and now_ms - each.seen_ms < _LIVE_MS for each in self._known.values()
        )
