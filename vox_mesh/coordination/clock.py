"""The mesh's clock: the database's, as a node knows it, and the hybrid times that follow it."""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vox_mesh.errors import BadValue, ClockOff
from vox_mesh.model.hlc import Hlc, HybridClock

if TYPE_CHECKING:
    from vox_mesh.store.memory import SharedHome

_log = logging.getLogger(__name__)

MAX_DISTANCE_MS: Final = 60_000
"""A node whose own clock is further off than this authors nothing new."""


@dataclass(frozen=True, slots=True)
class Surroundings:
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


class MeshClock:
    """Tells the database's time between its answers, by a clock of our own that never steps.

    The time in an answer was read after the request was sent and before the answer came: so what is told
    is never ahead of the database, and behind it by no more than the quickest answer took.
    """

    def __init__(self, surroundings: Surroundings) -> None:
        self._times = surroundings
        self._ahead_ms: float | None = None  # of the clock that never steps
        self._hybrid = HybridClock("")
        self.is_off = False
        """Whether our own clock was too far from the database's when that was last heard."""
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
        return self._times.monotonic()

    def heard(self, database_ms: int, started: float) -> None:
        """The database told its time, in answer to a request that was sent after `started`."""
        at_least = database_ms - self._times.monotonic() * 1_000
        at_most = database_ms + 1 - started * 1_000  # it tells whole milliseconds only
        if self._ahead_ms is None or not at_least <= self._ahead_ms <= at_most:
            self._ahead_ms = at_least  # nearer, or the database's own clock was set back
        is_off = abs(self.distance_ms) > MAX_DISTANCE_MS
        if is_off and not self.is_off:
            _log.error("this machine's clock is %+.0f s from the database's", self.distance_ms / 1_000)
        self.is_off = is_off

    @property
    def now_ms(self) -> int:
        """The database's time, as far as we know it; ours, before we have heard."""
        if self._ahead_ms is None:
            return self._times.wall_ms()
        return int(self._times.monotonic() * 1_000 + self._ahead_ms)

    @property
    def distance_ms(self) -> int:
        """This machine's clock minus the database's."""
        return self._times.wall_ms() - self.now_ms

    def refuse_if_off(self) -> None:
        """Raise `ClockOff` when nothing new should be authored by this machine's clock."""
        if self.is_off:
            raise ClockOff(
                f"this machine's clock is {self.distance_ms / 1_000:+.0f} s from the database's",
                hint="set the clock: nothing new is written until it is right",
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
