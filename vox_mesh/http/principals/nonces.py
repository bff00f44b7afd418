"""The nonces of signed requests: each is accepted once."""

from __future__ import annotations

from collections import Counter
from typing import Final

from vox_mesh.model.principals.request_signature import MAX_SKEW_MS

MAX_NONCES: Final = 250_000
"""The nonces that a node remembers, which is at least a minute of requests. Then it refuses more."""

MAX_OF_AGENT: Final = 50_000
"""The nonces of one agent among them."""


class Nonces:
    """Remember each nonce as long as its signature could be accepted.

    Nothing older than the memory is accepted: so a request that was captured before a restart is refused.
    """

    def __init__(self, now_ms: int) -> None:
        self._floor_ms = now_ms
        self._seen: dict[int, set[tuple[str, str]]] = {}
        self._counts: Counter[str] = Counter()

    def is_too_old(self, time_ms: int) -> bool:
        """Return whether a nonce of this time may have been forgotten, or was never known."""
        return time_ms < self._floor_ms

    def has_room(self, agent: str, now_ms: int) -> bool:
        """Return whether one more nonce of an agent can be remembered; drop the ones that have expired."""
        for period in [each for each in self._seen if _end_ms(each) + MAX_SKEW_MS < now_ms]:
            self._counts = self._counts - Counter(agent for agent, _ in self._seen.pop(period))
            self._floor_ms = max(self._floor_ms, _end_ms(period))
        total = sum(map(len, self._seen.values()))
        return total < MAX_NONCES and self._counts[agent] < MAX_OF_AGENT

    def add(self, agent: str, nonce: str, time_ms: int) -> bool:
        """Remember a nonce; return whether it is new. The caller has checked its time."""
        seen = self._seen.setdefault(time_ms // MAX_SKEW_MS, set())
        if (agent, nonce) in seen:
            return False
        seen.add((agent, nonce))
        self._counts[agent] += 1
        return True


def _end_ms(period: int) -> int:
    return (period + 1) * MAX_SKEW_MS
