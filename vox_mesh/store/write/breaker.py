"""Stop calling a database that keeps failing, and test it again with one probe at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Final

import pybreaker

from vox_mesh.errors import CircuitOpen, DatabaseFault, MeshError, NoAnswer, Unreachable

_MAX_FAULTS: Final = 5
RESET_TIMEOUT_S: Final = 30.0
"""Seconds for which an open circuit stays open before the next probe."""
_FAULT_KINDS: Final = (Unreachable, NoAnswer, DatabaseFault)
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


class _Storage(pybreaker.CircuitMemoryStorage):
    """Circuit state that times the opening by a monotonic clock."""

    def __init__(self, monotonic: Callable[[], float], reset_timeout_s: float) -> None:
        super().__init__(pybreaker.STATE_CLOSED)
        self._monotonic = monotonic
        self._reset_timeout_s = reset_timeout_s
        self._opened: float | None = None

    @property
    def opened_at(self) -> datetime | None:
        """Return a wall-clock time at which pybreaker sees the reset timeout as elapsed, or just begun."""
        if self._opened is None:
            return None
        return _LONG_AGO if self.has_timed_out else datetime.now(UTC)

    @opened_at.setter
    def opened_at(self, _: datetime) -> None:
        self._opened = self._monotonic()

    @property
    def open_s(self) -> float:
        """Return the seconds for which the circuit has been open."""
        return 0.0 if self._opened is None else self._monotonic() - self._opened

    @property
    def has_timed_out(self) -> bool:
        """Return whether the circuit has been open for the reset timeout."""
        return self.open_s >= self._reset_timeout_s


class Breaker:
    """A circuit breaker with pybreaker's rules and exactly one probe at a time.

    It opens after 5 consecutive faults of the transport or the server. A refused write is not a fault.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        *,
        faults: int = _MAX_FAULTS,
        reset_timeout_s: float = RESET_TIMEOUT_S,
    ) -> None:
        self._storage = _Storage(monotonic, reset_timeout_s)
        self._circuit = pybreaker.CircuitBreaker(
            fail_max=faults,
            reset_timeout=reset_timeout_s,
            state_storage=self._storage,
            throw_new_error_on_trip=False,
        )
        self._reset_timeout_s = reset_timeout_s
        self._is_probing = False

    @property
    def state(self) -> str:
        """Return `closed`, `open` or `half-open`."""
        return "half-open" if self._is_probing else self._circuit.current_state

    @property
    def is_rejecting(self) -> bool:
        """Return whether a call would be rejected now."""
        if self._circuit.current_state == pybreaker.STATE_CLOSED:
            return False
        return self._is_probing or not self._storage.has_timed_out

    def refusal(self) -> CircuitOpen:
        """Return the error of a rejected call."""
        left = max(0.0, self._reset_timeout_s - self._storage.open_s)
        return CircuitOpen(
            "the database has failed repeatedly and is not being called",
            hint=f"the next probe is due in {left:.0f} s; see `vox-mesh doctor`",
        )

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Guard a call: count its outcome, or raise `CircuitOpen` without making it."""
        if self.is_rejecting:
            raise self.refusal()
        is_probe = self._circuit.current_state != pybreaker.STATE_CLOSED
        self._is_probing = self._is_probing or is_probe
        try:
            yield
        except _FAULT_KINDS as fault:
            self._report(fault, is_probe=is_probe)
            raise
        except Exception:
            self._report(None, is_probe=is_probe)  # a refused write is an answer
            raise
        except BaseException:
            if is_probe:  # an interrupted probe proves nothing
                self._report(Unreachable("the probe was cut short"), is_probe=True)
            raise
        else:
            self._report(None, is_probe=is_probe)
        finally:
            if is_probe:
                self._is_probing = False

    def note(self, fault: MeshError) -> None:
        """Count a fault that was noticed outside of `admit`."""
        self._report(fault)

    def _report(self, fault: MeshError | None, *, is_probe: bool = False) -> None:
        """Count the outcome of a call. Unless the circuit is closed, only the probe counts.

        A call that began before the circuit opened may end during a probe or when the next one is due.
        """
        is_closed = self._circuit.current_state == pybreaker.STATE_CLOSED
        if not (is_probe or is_closed) or (is_closed and fault is None and not self._circuit.fail_counter):
            return

        def outcome() -> None:
            if fault is not None:
                raise fault

        with suppress(pybreaker.CircuitBreakerError, *_FAULT_KINDS):  # the caller raises the fault itself
            self._circuit.call(outcome)
