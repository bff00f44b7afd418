"""The mesh's clock, as a node knows it, and the hybrid times that follow it.

The time of the mesh is the database's clock plus a correction that the nodes maintain: when somebody sets the
database's clock, the time of the mesh goes on.
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

from vox_mesh.errors import BadValue, ClockOff, DatabaseClockJumped
from vox_mesh.model.base.hlc import Hlc, HybridClock
from vox_mesh.model.nodes.clock_steps import ClockStep

if TYPE_CHECKING:
    from vox_mesh.store.engines.memory import SharedHome

_log = logging.getLogger(__name__)

MAX_DISTANCE_MS: Final = 60_000
"""A node whose own clock is further off than this authors nothing new."""

MAX_STEP_MS: Final = 5_000
"""A smaller step of the database's clock is followed; a larger one has to be confirmed."""

_MAX_DRIFT: Final = 0.001
_LATE_MS: Final = 10_000
_LATEST_MS: Final = 600_000
_SAME_STEP_MS: Final = 2_000
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _days(time_ms: int) -> float:
    return time_ms / 86_400_000 + 2_440_587.5


def elapsed_s() -> float:
    """A clock that never steps and, unlike `time.monotonic`, goes on while the machine is suspended."""
    return time.clock_gettime(_CLOCK)


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What a node finds around it: a wall clock, one that never steps, chance (from 0 to 1), and secrets."""

    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    monotonic: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random
    secret: Callable[[int], bytes] = secrets.token_bytes
    """So many bytes that nobody can guess."""
    memory: SharedHome | None = None
    """The database of the memory home, if it is one that others share."""
    place: str | None = None
    """On such a home, where it runs: a node that begins there again takes over from the one before."""
    elapsed: Callable[[], float] = elapsed_s
    """A clock that never steps, not even while the machine sleeps: the witness against the database's."""


class MeshClock:
    """Tells the time of the mesh between the database's answers, by a clock of our own that never steps.

    The time in an answer was read after the request was sent and before the answer came: so what is told
    is never ahead of the database, and behind it by no more than the quickest answer took. An answer that
    can't be true unless the database's clock was set is not believed: see `step`.
    """

    def __init__(self, dependencies: Dependencies, *, has_own_wall: bool = False) -> None:
        self._times = dependencies
        self._has_own_wall = has_own_wall
        self._ahead_ms: float | None = None  # of the clock that never steps: at least so much
        self._unsure_ms = 0.0  # and by no more than this above it: an answer may have come late
        self._wall_ahead_ms = 0.0  # of the same, when the database was last believed
        self._heard_at = 0.0
        self._late_ms = _LATE_MS
        self._is_accepting = False
        self._hybrid = HybridClock("")
        self.is_off = False
        """Whether our own clock was too far from the database's when that was last heard."""
        self.step: ClockStep | None = None
        """How far the database's clock was from where it should be when it was last heard, if too far."""
        self.correction_ms = 0
        """The time of the mesh minus the database's clock, as it was last heard."""
        self.jumps = 0
        """How often the database's clock was found to have stepped."""
        self.flagged = 0
        """How many remote times were too far ahead to be believed."""

    def name(self, author: str) -> None:
        """Whose times these are."""
        last = self._hybrid.last
        self._hybrid = HybridClock(author)
        self._hybrid.resume(last)

    @property
    def is_set(self) -> bool:
        """Whether the database has told its time."""
        return self._ahead_ms is not None

    def started(self) -> float:
        """Take this before a request, and give it to `heard` with the answer."""
        return self._times.elapsed()

    def heard(
        self, mesh_ms: int, started: float, correction_ms: int | None = None, unsure_ms: int = 0
    ) -> None:
        """The database told the time, in answer to a request that was sent after `started`.

        `unsure_ms`: the time may be later by as much.
        """
        now = self._times.elapsed()
        if correction_ms is not None:
            self.correction_ms = correction_ms
        at_least = mesh_ms - now * 1_000
        at_most = mesh_ms + 1 - started * 1_000  # it tells whole milliseconds only
        ahead = self._ahead_ms
        if ahead is None or not at_least <= ahead <= at_most:
            if ahead is not None and not self._is_accepting:
                low_ms, high_ms = at_least - ahead - self._unsure_ms, at_most - ahead
                if self._is_step(low_ms, high_ms, now):
                    self._suspect(ClockStep(round(low_ms), round(high_ms)))
                    return
            self._ahead_ms = at_least  # nearer, or they drift apart
            self._unsure_ms = at_most - at_least + unsure_ms
        else:
            self._unsure_ms = min(self._unsure_ms, at_most - ahead)
        self.step, self._is_accepting = None, False
        self._heard_at = now
        self._wall_ahead_ms = self._times.wall_ms() - now * 1_000
        self._late_ms = max(_LATE_MS, self._late_ms // 2)
        self._look_at_own()

    def _is_step(self, low_ms: float, high_ms: float, now: float) -> bool:
        """Whether what is certain of the difference is more than clocks drift apart in that time."""
        most = MAX_STEP_MS + _MAX_DRIFT * 1_000 * (now - self._heard_at)
        return low_ms > most or high_ms < -most

    def _suspect(self, step: ClockStep) -> None:
        if self.step is None:
            self.jumps += 1
            _log.error("the database's clock has jumped by %+.1f s", step.low_ms / 1_000)
        self.step = step

    def _look_at_own(self) -> None:
        # While there is a correction, the database's clock is wrong or our own is: either may be the one
        # that a machine's own clock agrees with.
        distance = self.distance_ms
        is_off = min(abs(distance), abs(distance + self.correction_ms)) > MAX_DISTANCE_MS
        if is_off and not self.is_off:
            _log.error("%s", self._off_text())
        self.is_off = is_off

    def accept(self) -> None:
        """Believe whatever the database tells next: its clock is right, and ours has stood still."""
        self._is_accepting = True

    @property
    def has_own_stepped_too(self) -> bool:
        """Whether this machine's clock has stepped as far as the database's, though it is not the same."""
        if self.step is None or not self._has_own_wall:
            return False
        own_ms = self._times.wall_ms() - self._times.elapsed() * 1_000 - self._wall_ahead_ms
        return self.step.low_ms - _SAME_STEP_MS <= own_ms <= self.step.high_ms + _SAME_STEP_MS

    @property
    def has_come_right(self) -> bool:
        """Whether our own clock was too far from the database's, and agrees with it since its step."""
        if self.step is None or not self.is_off:
            return False
        return abs(self.distance_ms - self.step.low_ms) <= MAX_STEP_MS

    @property
    def now_ms(self) -> int:
        """The time of the mesh, as far as we know it; our own, before we have heard."""
        if self._ahead_ms is None:
            return self._times.wall_ms()
        return int(self._times.elapsed() * 1_000 + self._ahead_ms)

    @property
    def wall_ms(self) -> int:
        """This machine's clock."""
        return self._times.wall_ms()

    @property
    def distance_ms(self) -> int:
        """This machine's clock minus the time of the mesh."""
        return self._times.wall_ms() - self.now_ms

    # --- what a request expects ------------------------------------------------------------------

    @property
    def window_ms(self) -> tuple[int, int]:
        """Between which times a request that is made now may be applied.

        A request can be late, but never early. While a step is not decided, none may be as late as the step:
        the database then refuses it, and the node takes part in the decision.
        """
        now_ms = self.now_ms
        late_ms = self._late_ms if self.step is None else MAX_STEP_MS
        return now_ms - MAX_STEP_MS, now_ms + late_ms

    @property
    def window_days(self) -> tuple[float, float]:
        """The same by the database's own clock, as `julianday` tells it."""
        earliest, latest = self.window_ms
        return _days(earliest - self.correction_ms), _days(latest - self.correction_ms)

    def was_late(self, made_at: float) -> None:
        """A request that was made then was not applied in time: give the next ones more."""
        took_ms = round((self._times.elapsed() - made_at) * 1_000)
        if took_ms > self._late_ms:
            self._late_ms = min(_LATEST_MS, 2 * took_ms)

    # --- whether anything new may be done --------------------------------------------------------

    @property
    def can_author(self) -> bool:
        """Whether the clocks allow anything new to be granted, authored or expired here."""
        return self.step is None and not self.is_off

    def refuse_if_off(self) -> None:
        """Raise `DatabaseClockJumped` or `ClockOff` when nothing new may be granted or authored here."""
        if self.step is not None:
            raise self.jumped()
        if self.is_off:
            raise ClockOff(
                self._off_text(),
                hint="set the one that is wrong: nothing new is written until then",
            )

    def _off_text(self) -> str:
        text = f"this machine's clock is {self.distance_ms / 1_000:+.0f} s from the database's"
        if self.correction_ms:
            text += f" as corrected by {self.correction_ms / 1_000:+.0f} s"
        return text

    def jumped(self) -> DatabaseClockJumped:
        """The error while a step of the database's clock is not confirmed."""
        step_s = 0.0 if self.step is None else self.step.low_ms / 1_000
        return DatabaseClockJumped(
            f"the database's clock has jumped by {step_s:+.1f} s, which is not confirmed by the nodes yet",
            hint="retry in a few seconds; check the clock of the database's machine",
        )

    # --- hybrid times ----------------------------------------------------------------------------

    def tick(self, now_ms: int | None = None) -> Hlc:
        """The time of an event of our own, now."""
        return self._hybrid.tick(self.now_ms if now_ms is None else now_ms)

    def receive(self, text: str) -> bool:
        """Merge a time that was seen in a row or message; `False`, and a warning, if it can't be true."""
        with suppress(BadValue):
            if self._hybrid.receive(Hlc.parse(text), self.now_ms) is not None:
                return True
        self.flagged += 1
        _log.warning("%r is no time, or ahead of the database's by more than a second: not merged", text)
        return False

    def resume(self, text: str) -> None:
        """Go on after a time of our own."""
        self._hybrid.resume(Hlc.parse(text))
