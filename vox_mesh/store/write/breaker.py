"""The circuit breaker: stops calling a database that keeps failing, and tries again with one probe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Final

import pybreaker

from vox_mesh.errors import CircuitOpen, DatabaseFault, MeshError, NoAnswer, Unreachable

_FAULTS: Final = 5
REST_S: Final = 30.0
"""So long a circuit that has opened stays open."""
_FAULT_KINDS: Final = (Unreachable, NoAnswer, DatabaseFault)
_AGES_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


class _Storage(pybreaker.CircuitMemoryStorage):
    """Keeps the moment of opening by a clock that can't be set back or forward."""

    def __init__(self, monotonic: Callable[[], float], rest_s: float) -> None:
        super().__init__(pybreaker.STATE_CLOSED)
        self._monotonic = monotonic
        self._rest_s = rest_s
        self._opened: float | None = None

    @property
    def opened_at(self) -> datetime | None:
        """As whoever compares it with the wall clock must see it: the rest is over, or has just begun."""
        if self._opened is None:
            return None
        return _AGES_AGO if self.is_rested else datetime.now(UTC)

    @opened_at.setter
    def opened_at(self, _: datetime) -> None:
        self._opened = self._monotonic()

    @property
    def rested_s(self) -> float:
        """For how long the circuit has been open."""
        return 0.0 if self._opened is None else self._monotonic() - self._opened

    @property
    def is_rested(self) -> bool:
        """Whether it has been open for long enough."""
        return self.rested_s >= self._rest_s


class Breaker:
    """pybreaker's rules, with exactly one probe at a time when the rest is over.

    Opens after 5 faults in a row. A fault is the transport's or the server's, never a refused write.
    """

    def __init__(
        self, monotonic: Callable[[], float], *, faults: int = _FAULTS, rest_s: float = REST_S
    ) -> None:
        self._storage = _Storage(monotonic, rest_s)
        self._circuit = pybreaker.CircuitBreaker(
            fail_max=faults,
            reset_timeout=rest_s,
            state_storage=self._storage,
            throw_new_error_on_trip=False,
        )
        self._rest_s = rest_s
        self._probing = False

    @property
    def state(self) -> str:
        """`closed`, `open` or `half-open`."""
        return "half-open" if self._probing else self._circuit.current_state

    @property
    def refuses(self) -> bool:
        """Whether a call would be refused now."""
        if self._circuit.current_state == pybreaker.STATE_CLOSED:
            return False
        return self._probing or not self._storage.is_rested

    def refusal(self) -> CircuitOpen:
        """What a refused call gets."""
        left = max(0.0, self._rest_s - self._storage.rested_s)
        return CircuitOpen(
            "the database has failed repeatedly and is not being called",
            hint=f"the next probe is due in {left:.0f} s; see `vox-mesh doctor`",
        )

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Let a call through, or raise `CircuitOpen`; what the call raises decides what comes next."""
        if self.refuses:
            raise self.refusal()
        probe = self._circuit.current_state != pybreaker.STATE_CLOSED
        self._probing = self._probing or probe
        try:
            yield
        except _FAULT_KINDS as fault:
            self._report(fault, is_probe=probe)
            raise
        except Exception:
            self._report(None, is_probe=probe)  # a refused write is an answer
            raise
        except BaseException:
            if probe:  # cut short, it has shown nothing
                self._report(Unreachable("the probe was cut short"), is_probe=True)
            raise
        else:
            self._report(None, is_probe=probe)
        finally:
            if probe:
                self._probing = False

    def note(self, fault: MeshError) -> None:
        """Count a fault that showed outside of `passing`."""
        self._report(fault)

    def _report(self, fault: MeshError | None, *, is_probe: bool = False) -> None:
        """Count the outcome of a call. While the circuit is not closed, only its probe counts.

        A call that began before the circuit opened may end during a probe, or when the next one is due.
        """
        is_closed = self._circuit.current_state == pybreaker.STATE_CLOSED
        if not (is_probe or is_closed) or (is_closed and fault is None and not self._circuit.fail_counter):
            return

        def outcome() -> None:
            if fault is not None:
                raise fault

        with suppress(pybreaker.CircuitBreakerError, *_FAULT_KINDS):  # the caller raises the fault itself
            self._circuit.call(outcome)
