"""The mesh's clock as a node knows it, and the hybrid times that follow it.

The time of the mesh is the database's clock plus a correction that the nodes maintain: when the database's
clock is set, the time of the mesh goes on without a step.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vox_mesh.errors import BadValue, ClockOff, DatabaseClockJumped, DatabaseFault
from vox_mesh.model.base.hlc import Hlc, HybridClock
from vox_mesh.model.nodes.clock_steps import ClockStep

if TYPE_CHECKING:
    from vox_mesh.store.engines.memory import SharedHome

_log = logging.getLogger(__name__)

MAX_DISTANCE_MS: Final = 60_000
"""A node whose own clock differs by more than this authors nothing new."""

MAX_STEP_MS: Final = 5_000
"""Smaller steps of the database's clock are followed; larger ones have to be confirmed."""

_MAX_DRIFT: Final = 0.001
_MAX_SLEW: Final = 0.05
"""How fast a correction fades: `slew` in `database_clock.sql`."""
_MAX_SLEW_MS: Final = 500
"""How much of a correction fades at once, after a pause."""
_MIN_LATE_MS: Final = 10_000
_MAX_LATE_MS: Final = 600_000
_STEP_TOLERANCE_MS: Final = 2_000
_CLOCK_ID: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _julian_day(time_ms: int) -> float:
    return time_ms / 86_400_000 + 2_440_587.5


def elapsed_s() -> float:
    """Return the seconds of a clock that never steps and, unlike `time.monotonic`, counts suspended time."""
    return time.clock_gettime(_CLOCK_ID)


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The injected clocks, randomness (from 0 to 1) and secrets of a node."""

    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    monotonic: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random
    secret: Callable[[int], bytes] = secrets.token_bytes
    """Returns this many unpredictable bytes."""
    memory: SharedHome | None = None
    """The database of the memory backend, if it is shared."""
    place: str | None = None
    """The place on a shared backend: a node that restarts there takes over from the previous one."""
    elapsed: Callable[[], float] = elapsed_s
    """A clock that never steps and counts suspended time; it reveals steps of the database's clock."""


def jumped_error(step_ms: int) -> DatabaseClockJumped:
    """Return the error to raise while a step of the database's clock is not confirmed."""
    return DatabaseClockJumped(
        f"database clock jumped by {step_ms / 1_000:+.1f} s: the nodes have not confirmed it yet",
        hint="retry in a few seconds; check the clock of the database's machine",
    )


class MeshClock:
    """Estimate the time of the mesh between the database's answers, by a local clock that never steps.

    The time in an answer was read after the request was sent and before the answer came: so the estimate is
    never ahead of the database, and behind it by no more than the fastest answer took. An answer that is
    impossible unless the database's clock was set is not believed: see `step`.
    """

    def __init__(self, dependencies: Dependencies, *, has_own_wall: bool = False) -> None:
        self._times = dependencies
        self._has_own_wall = has_own_wall
        self._ahead_ms: float | None = None  # of the clock that never steps: the lower bound
        self._unsure_ms = 0.0  # the upper bound is above it by this: an answer may have been late
        self._wall_ahead_ms = 0.0  # of the clock that never steps, when the database was last believed
        self._heard_at = 0.0
        self._noticed_at = 0.0  # when a step was last noticed
        self._late_ms = _MIN_LATE_MS
        self._is_accepting = False
        self._hybrid = HybridClock("")
        self.is_off = False
        """Whether our own clock was too far from the database's at its last answer."""
        self.step: ClockStep | None = None
        """The unconfirmed step of the database's clock at its last answer, if there was one."""
        self.correction_ms = 0
        """The time of the mesh minus the database's clock, by its last answer."""
        self.jumps = 0
        """How many steps of the database's clock were found."""
        self.flagged = 0
        """How many remote times were rejected as too far ahead."""

    def name(self, author: str) -> None:
        """Set the author of the hybrid times."""
        last = self._hybrid.last
        self._hybrid = HybridClock(author)
        self._hybrid.resume(last)

    @property
    def is_set(self) -> bool:
        """Return whether the database has reported its time."""
        return self._ahead_ms is not None

    def started(self) -> float:
        """Return a start mark; take it before a request, and pass it to `heard` with the answer."""
        return self._times.elapsed()

    def heard(
        self, mesh_ms: int, started: float, correction_ms: int | None = None, unsure_ms: int = 0
    ) -> None:
        """Take in the time that the database reported, in answer to a request sent after `started`.

        `unsure_ms`: the time may be later by this much.
        """
        if type(mesh_ms) is not int or type(correction_ms) not in (int, type(None)):
            raise DatabaseFault(
                "the database's clock can't be read: its time or its correction is not a whole number",
                hint="it was changed past the mesh: delete the row of database_clock",
            )
        if self.step is not None and started < self._noticed_at:
            return  # the time may have been read before the step
        now = self._times.elapsed()
        has_faded = self.correction_ms != 0  # the rest of it may have, since the last answer
        if correction_ms is not None:
            self.correction_ms = correction_ms
        at_least = mesh_ms - now * 1_000
        at_most = mesh_ms + 1 - started * 1_000  # it reports whole milliseconds
        ahead = self._ahead_ms
        if ahead is None or not at_least <= ahead <= at_most:
            if ahead is not None and not self._is_accepting:
                low_ms, high_ms = at_least - ahead - self._unsure_ms, at_most - ahead
                if self._is_step(low_ms, high_ms, now):
                    self._suspect(ClockStep(round(low_ms), round(high_ms)), now)
                    return
            self._ahead_ms = self._lower_bound(at_least, at_most, now, has_faded)
            self._unsure_ms = at_most - self._ahead_ms + unsure_ms
        else:
            self._unsure_ms = min(self._unsure_ms, at_most - ahead)
        self.step, self._is_accepting = None, False
        self._heard_at = now
        self._wall_ahead_ms = self._times.wall_ms() - now * 1_000
        self._late_ms = max(_MIN_LATE_MS, self._late_ms // 2)
        self._check_own_clock()

    def _is_step(self, low_ms: float, high_ms: float, now: float) -> bool:
        """Return whether the certain part of the difference exceeds what clocks drift in that time."""
        most = MAX_STEP_MS + _MAX_DRIFT * 1_000 * (now - self._heard_at)
        return low_ms > most or high_ms < -most

    def _lower_bound(self, at_least: float, at_most: float, now: float, has_faded: bool) -> float:
        """Return the better bound: the answer's, or the previous one if drift explains the difference.

        An answer may have been on its way for long, so that its own bound is far too low.
        """
        if self._ahead_ms is None:
            return at_least
        drift_ms = _MAX_DRIFT * 1_000 * (now - self._heard_at)
        if has_faded or self.correction_ms:
            drift_ms += _MAX_SLEW * 1_000 * (now - self._heard_at) + _MAX_SLEW_MS
        lowest = self._ahead_ms - drift_ms
        return max(at_least, lowest) if lowest <= at_most else at_least

    def _suspect(self, step: ClockStep, now: float) -> None:
        if self.step is None:
            self.jumps += 1
            self._noticed_at = now
            _log.error("database clock jumped: step_s=%+.1f", step.low_ms / 1_000)
        self.step = step

    def _check_own_clock(self) -> None:
        # With a correction in force, this machine's clock may agree with the database's clock or with the
        # corrected time: either is fine.
        distance = self.distance_ms
        is_off = min(abs(distance), abs(distance + self.correction_ms)) > MAX_DISTANCE_MS
        if is_off and not self.is_off:
            _log.error("%s", self._off_text())
        self.is_off = is_off

    def accept(self) -> None:
        """Accept the next time that the database reports: its clock is right, and ours has stood still."""
        self._is_accepting = True

    @property
    def has_own_stepped_too(self) -> bool:
        """Return whether this machine's clock stepped as far as the database's, though they are separate."""
        if self.step is None or not self._has_own_wall:
            return False
        own_ms = self._times.wall_ms() - self._times.elapsed() * 1_000 - self._wall_ahead_ms
        return self.step.low_ms - _STEP_TOLERANCE_MS <= own_ms <= self.step.high_ms + _STEP_TOLERANCE_MS

    @property
    def has_come_right(self) -> bool:
        """Return whether our clock was too far from the database's, and agrees with it since its step."""
        if self.step is None or not self.is_off:
            return False
        return abs(self.distance_ms - self.step.low_ms) <= MAX_STEP_MS

    @property
    def now_ms(self) -> int:
        """Return the estimated time of the mesh; our own clock's before the database has reported."""
        if self._ahead_ms is None:
            return self._times.wall_ms()
        return int(self._times.elapsed() * 1_000 + self._ahead_ms)

    @property
    def wall_ms(self) -> int:
        """Return the time of this machine's clock."""
        return self._times.wall_ms()

    @property
    def distance_ms(self) -> int:
        """Return this machine's clock minus the time of the mesh."""
        return self._times.wall_ms() - self.now_ms

    # --- the time window of a request ------------------------------------------------------------

    @property
    def window_ms(self) -> tuple[int, int]:
        """Return the earliest and the latest time at which a request made now may be applied.

        A request can be late, but never early. While a step is not decided, none may be as late as the step:
        the database then refuses it, and the node takes part in the decision.
        """
        now_ms = self.now_ms
        late_ms = self._late_ms if self.step is None else MAX_STEP_MS
        return now_ms - MAX_STEP_MS, now_ms + late_ms

    @property
    def window_days(self) -> tuple[float, float]:
        """Return the window by the database's own clock, in Julian days."""
        earliest, latest = self.window_ms
        return _julian_day(earliest - self.correction_ms), _julian_day(latest - self.correction_ms)

    def was_late(self, made_at: float) -> None:
        """Record that a request made at `made_at` was not applied in time; the next ones get more."""
        took_ms = round((self._times.elapsed() - made_at) * 1_000)
        if took_ms > self._late_ms:
            self._late_ms = min(_MAX_LATE_MS, 2 * took_ms)

    # --- whether anything new may be done --------------------------------------------------------

    @property
    def can_author(self) -> bool:
        """Return whether the clocks allow new grants, ops and expiries here."""
        return self.step is None and not self.is_off

    def refuse_if_off(self) -> None:
        """Raise `DatabaseClockJumped` or `ClockOff` when nothing new may be granted or authored here."""
        if self.step is not None:
            raise jumped_error(self.step.low_ms)
        if self.is_off:
            raise ClockOff(
                self._off_text(),
                hint="correct the clock that is wrong: nothing new is written until then",
            )

    def _off_text(self) -> str:
        text = f"this machine's clock is {self.distance_ms / 1_000:+.0f} s from the database's"
        if self.correction_ms:
            text += f" as corrected by {self.correction_ms / 1_000:+.0f} s"
        return text

    # --- hybrid times ----------------------------------------------------------------------------

    def tick(self, now_ms: int | None = None) -> Hlc:
        """Return the time of a local event, now."""
        return self._hybrid.tick(self.now_ms if now_ms is None else now_ms)

    def receive(self, text: str) -> bool:
        """Merge a time seen in a row or message. Return `False`, with a warning, if it is impossible."""
        with suppress(BadValue):
            if self._hybrid.receive(Hlc.parse(text), self.now_ms) is not None:
                return True
        self.flagged += 1
        _log.warning("remote time rejected, malformed or too far ahead: hlc=%r", text)
        return False

    def resume(self, text: str) -> None:
        """Continue after a time of our own."""
        self._hybrid.resume(Hlc.parse(text))
