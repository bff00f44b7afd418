"""A breaker that rests for a time that fits a play, and tells of its probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from proof.chaos.schedule import PACE
from vox_mesh.store.write.breaker import Breaker

_TRIED: Final = "half-open"


class WatchedBreaker(Breaker):
    """Tells, for each call that it lets through while the circuit is tried, how many others there are."""

    def __init__(self, monotonic: Callable[[], float], *, probed: Callable[[int], None]) -> None:
        super().__init__(monotonic, reset_timeout_s=PACE.ttl_s)
        self._probed = probed
        self._probes = 0

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Let a call through, or raise `CircuitOpen`."""
        with super().admit():
            if self.state != _TRIED:
                yield
                return
            self._probed(self._probes)
            self._probes += 1
            try:
                yield
            finally:
                self._probes -= 1
