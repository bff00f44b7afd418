"""The nonces of signed requests: each is accepted once."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from vox_mesh.model.principals.request_signature import MAX_AHEAD_MS, MAX_SKEW_MS

MAX_NONCES: Final = 250_000
"""The nonces that a node remembers, which is at least a minute of requests. Then it refuses more."""

MAX_OF_AGENT: Final = 50_000
"""The nonces of one agent among them."""

RESERVED: Final = 64
"""The nonces of an agent that are remembered whatever others have sent: so it can always get a bearer."""


class Nonces:
    """Remember each nonce as long as its signature could be accepted.

    Nothing older than the memory is accepted, nor what an earlier process may have accepted: so a request
    that was captured before a restart is refused.
    """

    def __init__(self, now_ms: int) -> None:
        self._start_ms = now_ms
        self._floor_ms = now_ms + MAX_AHEAD_MS + 1
        self._seen: dict[int, defaultdict[str, set[str]]] = {}
        self._counts: Counter[str] = Counter()

    @property
    def floor_ms(self) -> int:
        """The least time of a signature: an earlier nonce may have been forgotten, or was never known."""
        return self._floor_ms

    def is_after_start(self, time_ms: int) -> bool:
        """Return whether a signature has a time since the start, though one that can't be accepted."""
        return self._start_ms <= time_ms <= self._start_ms + MAX_AHEAD_MS

    def has_room(self, agent: str, now_ms: int) -> bool:
        """Return whether one more nonce of an agent can be remembered; drop the ones that have expired."""
        for period in [each for each in self._seen if _end_ms(each) + MAX_SKEW_MS < now_ms]:
            self._counts -= Counter({name: len(own) for name, own in self._seen.pop(period).items()})
            self._floor_ms = max(self._floor_ms, _end_ms(period))
        count = self._counts[agent]
        return count < RESERVED or (count < MAX_OF_AGENT and self._counts.total() < MAX_NONCES)

    def add(self, agent: str, nonce: str, time_ms: int) -> bool:
        """Remember a nonce; return whether it is new. The caller has checked its time."""
        seen = self._seen.setdefault(time_ms // MAX_SKEW_MS, defaultdict(set))[agent]
        if nonce in seen:
            return False
        seen.add(nonce)
        self._counts[agent] += 1
        return True


def _end_ms(period: int) -> int:
    return (period + 1) * MAX_SKEW_MS
