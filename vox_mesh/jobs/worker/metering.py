"""Metering: what the work on a job uses, as the system tells it. What it does not tell stays unknown."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from vox_mesh.errors import OverBudget
from vox_mesh.jobs.exec.process_group import ProcessGroup, group_of
from vox_mesh.model.rhythm.budgets import Budget, Excess
from vox_mesh.model.rhythm.costs import Resources

_GB: Final = 1e9
_MB: Final = 1e6
_BLOCK: Final = 512  # bytes, in what Linux tells of a process that has ended

T = TypeVar("T")


class Meter:
    """Measures one attempt: the processes of a command, or the thread of a handler; and what is reported."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._reported = Resources()
        self._group: ProcessGroup | None = None
        self._thread_clock: int | None = None
        self._cpu_s: float | None = None
        self._gb_s: float | None = None
        self._io_mb: float | None = None
        self._rss: int | None = None
        self._looked_at = 0.0
        self._looking = threading.Lock()

    @property
    def is_sampling(self) -> bool:
        """Whether there is anything that is to be looked at every now and then."""
        return self._group is not None or self._thread_clock is not None

    @property
    def used(self) -> Resources:
        """All that was used so far."""
        measured = Resources(cpu_sec=self._cpu_s, mem_gbs=self._gb_s, disk_io_mb=self._io_mb)
        return measured + self._reported

    def report(self, more: Resources) -> None:
        """Have what somebody else has measured counted, too."""
        self._reported += more

    # --- processes -------------------------------------------------------------------------------

    def watch(self, group: ProcessGroup) -> None:
        """Look at the processes of a group from now on."""
        self._group = group
        self._looked_at = self._monotonic()

    def look(self) -> None:
        """See what has been used. It reads of all processes there are: not for the event loop to do."""
        with self._looking:  # the one before may be under way yet, though nobody waits for it
            if (clock := self._thread_clock) is not None:
                with suppress(OSError):  # the thread has just ended, and told itself
                    self._cpu_s = time.clock_gettime(clock)
            if self._group is not None:
                self._look_at(self._group)

    def _look_at(self, group: ProcessGroup) -> None:
        # Taken first: if it ends meanwhile, the rest is found when it is looked at again.
        ended, number = group.usage, group.number
        if number is not None:
            cpu_s, rss, io_mb = _of_group(number)
            self._cpu_s = _highest(self._cpu_s, cpu_s)
            self._io_mb = _highest(self._io_mb, io_mb)
            self._integrate(rss)
        if ended is not None:
            self._cpu_s = _highest(self._cpu_s, ended.ru_utime + ended.ru_stime)
            if sys.platform == "linux":
                self._io_mb = _highest(self._io_mb, (ended.ru_inblock + ended.ru_oublock) * _BLOCK / _MB)
        if number is None and ended is not None:
            self._integrate(0)
            self._group = None

    def _integrate(self, rss: int | None) -> None:
        """What was there when it was last looked at has been there since."""
        now = self._monotonic()
        if self._rss is not None:
            self._gb_s = (self._gb_s or 0.0) + self._rss / _GB * (now - self._looked_at)
        self._rss = rss if rss is not None else self._rss
        self._looked_at = now

    # --- threads ---------------------------------------------------------------------------------

    def timed(self, call: Callable[[], T]) -> T:
        """Call a function in the thread that it runs in, and have its processor time counted."""
        if clock_of := getattr(time, "pthread_getcpuclockid", None):  # not everywhere
            self._thread_clock = clock_of(threading.get_ident())
        began_s = time.thread_time()
        try:
            return call()
        finally:
            self._thread_clock = None
            self._cpu_s = time.thread_time() - began_s


# --- several of them ---------------------------------------------------------------------------------


class Share:
    """What one attempt has used since a beat began, on whose account, and how it is stopped."""

    def __init__(
        self, meter: Meter, subjects: Sequence[str], epoch_ms: int, stop: Callable[[OverBudget], None]
    ) -> None:
        self._meter = meter
        self._before = Resources()
        self.subjects = subjects
        self.epoch_ms = epoch_ms
        self.stop = stop

    @property
    def used(self) -> Resources:
        """What was used since."""
        return self._meter.used - self._before

    def count_from(self, epoch_ms: int) -> None:
        """Count what is used in another beat."""
        if epoch_ms != self.epoch_ms:
            self.epoch_ms, self._before = epoch_ms, self._meter.used


class Found(NamedTuple):
    """More than a beat may use, and which attempt has used most of it."""

    excess: Excess
    by: Share


class Shares:
    """What all attempts of a worker use in a beat together, by agent and account."""

    def __init__(self) -> None:
        self._shares: set[Share] = set()
        self._ended: dict[tuple[str, int], Resources] = {}  # what those used that were over in the beat
        self._answered: dict[str, int] = {}

    def join(self, share: Share) -> None:
        """An attempt begins."""
        self._shares.add(share)

    def leave(self, share: Share) -> None:
        """It is over; what it used in this beat was used."""
        self._shares.discard(share)
        self._ended = {key: used for key, used in self._ended.items() if key[1] >= share.epoch_ms}
        for subject in share.subjects:
            key = subject, share.epoch_ms
            self._ended[key] = self._ended.get(key, Resources()) + share.used

    def excess(self, share: Share, subject: str, budget: Budget, beats: float) -> Found | None:
        """What all that count from the same beat as this one have used too much of.

        It is told once a beat: when one is stopped, the others may be within the ceiling.
        """
        epoch_ms = share.epoch_ms
        if not budget.per_beat or self._answered.get(subject) == epoch_ms:
            return None
        sharing = [each for each in self._shares if each.epoch_ms == epoch_ms and subject in each.subjects]
        ended = self._ended.get((subject, epoch_ms), Resources())
        excess = budget.over_in_beat(sum((each.used for each in sharing), ended), beats)
        if excess is None:
            return None
        self._answered[subject] = epoch_ms
        return Found(excess, max(sharing, key=lambda each: excess.amount_in(each.used)))


def _highest(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else max(one, other)


def _of_group(number: int) -> tuple[float | None, int | None, float | None]:
    """Processor time, memory and traffic to disks of all processes of a group but its guardian.

    What has ended is part of what its parent tells, if that has waited for it.
    """
    import psutil  # few jobs are metered

    cpu_s = rss = io_mb = None
    for pid in psutil.pids():
        if pid == number or group_of(pid) != number:
            continue
        with suppress(psutil.Error):  # it has ended meanwhile, or tells us nothing
            process = psutil.Process(pid)
            with process.oneshot():
                cpu_s = _plus(cpu_s, sum(process.cpu_times()[:4]))  # its own, and that of ended children
                rss = _plus(rss, process.memory_info().rss)
                io_mb = _plus(io_mb, _traffic_mb(process))
    return cpu_s, None if rss is None else int(rss), io_mb


def _plus(one: float | None, more: float | None) -> float | None:
    return one if more is None else more if one is None else one + more


def _traffic_mb(process: Any) -> float | None:
    counters = getattr(process, "io_counters", None)  # not everywhere
    if counters is None:
        return None
    told = counters()
    return float(told.read_bytes + told.write_bytes) / _MB
