"""A circuit breaker with a reset timeout that suits a run, which reports its probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from proof.chaos.schedule import PACE
from vox_mesh.store.write.breaker import Breaker

_TRIED: Final = "half-open"


class WatchedBreaker(Breaker):
    """Report, for each call admitted while the circuit is half-open, how many others are in progress."""

    def __init__(self, monotonic: Callable[[], float], *, probed: Callable[[int], None]) -> None:
        super().__init__(monotonic, reset_timeout_s=PACE.ttl_s)
        self._probed = probed
        self._probes = 0

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Admit a call, or raise `CircuitOpen`."""
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
