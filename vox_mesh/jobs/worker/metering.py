"""Metering: the resources an attempt uses, as far as the operating system reports them."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from vox_mesh.errors import OverBudget
from vox_mesh.jobs.exec.process_group import ProcessGroup, group_of
from vox_mesh.model.rhythm.budgets import Budget, Excess
from vox_mesh.model.rhythm.costs import NOTHING, Resources
from vox_mesh.model.rhythm.tokens import NO_TOKENS
from vox_mesh.model.rhythm.usage import Usage

_GB: Final = 1e9
_MB: Final = 1e6
_READ_INTERVAL_S: Final = 0.5
_STATM: Final = Path("/proc/self/statm")
_IO: Final = Path("/proc/self/io")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_BLOCK: Final = 512  # bytes per block in the rusage of an ended process on Linux

T = TypeVar("T")


class ProcessUsage(NamedTuple):
    """The memory of a process in bytes, and the megabytes it has transferred to and from disks."""

    rss: int | None
    io_mb: float | None


class ShareMark(NamedTuple):
    """The sums of all shares when a handler began."""

    reads: int
    gb_s: float
    io_mb: float


class ProcessShares:
    """What running handlers use of this process: nothing tells them apart, so each is charged an equal share.

    The process is read every half second at most, and only when a handler begins or ends.
    """

    def __init__(
        self, monotonic: Callable[[], float], read: Callable[[], ProcessUsage] | None = None
    ) -> None:
        self._monotonic = monotonic
        self._read = read or read_process
        self._last = ProcessUsage(None, None)
        self._read_at = -math.inf
        self._changed_at = 0.0
        self._running = 0
        self._reads = 0
        self._gb_s = 0.0
        self._io_mb = 0.0

    def begin(self) -> ShareMark:
        """Return the mark of a handler that begins."""
        self._advance()
        self._running += 1
        return ShareMark(self._reads, self._gb_s, self._io_mb)

    def end(self, mark: ShareMark) -> tuple[float | None, float | None]:
        """Return the share of a handler that ends, in gigabyte seconds and megabytes; `None`: not known.

        Transfers are known only if the process was read meanwhile.
        """
        self._advance()
        self._running -= 1
        gb_s = None if self._last.rss is None else self._gb_s - mark.gb_s
        is_read = self._reads > mark.reads and self._last.io_mb is not None
        return gb_s, self._io_mb - mark.io_mb if is_read else None

    def _advance(self) -> None:
        now, last = self._monotonic(), self._last
        if self._running and last.rss is not None:
            self._gb_s += last.rss / _GB * (now - self._changed_at) / self._running
        self._changed_at = now
        if now - self._read_at < _READ_INTERVAL_S:
            return
        self._read_at, self._last = now, self._read()
        self._reads += 1
        if self._running and last.io_mb is not None and self._last.io_mb is not None:
            self._io_mb += max(0.0, self._last.io_mb - last.io_mb) / self._running


class Meter:
    """Measures one attempt: a command's processes or a handler, plus reported usage."""

    def __init__(
        self, monotonic: Callable[[], float] = time.monotonic, process: ProcessShares | None = None
    ) -> None:
        self._monotonic = monotonic
        self._process = process
        self._reported = NOTHING
        self.tokens = NO_TOKENS
        """The tokens of language models that were reported."""
        self._group: ProcessGroup | None = None
        self._thread_clock: int | None = None
        self._cpu_s: float | None = None
        self._gb_s: float | None = None
        self._io_mb: float | None = None
        self._rss: int | None = None
        self._sampled_at = 0.0
        self._sampling = threading.Lock()

    @property
    def is_sampling(self) -> bool:
        """Return whether `sample` must be called regularly."""
        return self._group is not None or self._thread_clock is not None

    @property
    def has_reports(self) -> bool:
        """Return whether usage was reported that is not measured here."""
        return self._reported is not NOTHING or bool(self.tokens)

    @property
    def used(self) -> Resources:
        """Return the resources used so far."""
        if self._cpu_s is None and self._gb_s is None and self._io_mb is None:
            return self._reported
        measured = Resources(cpu_sec=self._cpu_s, mem_gbs=self._gb_s, disk_io_mb=self._io_mb)
        return measured + self._reported

    def report(self, more: Usage) -> None:
        """Add usage that was measured elsewhere."""
        self._reported += more.resources
        self.tokens += more.tokens

    # --- processes -------------------------------------------------------------------------------

    def watch(self, group: ProcessGroup) -> None:
        """Measure the processes of a group from now on."""
        self._group = group
        self._sampled_at = self._monotonic()

    def sample(self) -> None:
        """Update the measured usage. Blocking: it scans all processes, so call it in a thread."""
        with self._sampling:  # a cancelled call may still be running in its thread
            if (clock := self._thread_clock) is not None:
                with suppress(OSError):  # the thread has just ended and recorded its own time
                    self._cpu_s = time.clock_gettime(clock)
            if self._group is not None:
                self._sample_group(self._group)

    def _sample_group(self, group: ProcessGroup) -> None:
        # Read first: if the group ends meanwhile, the next sample has the rest.
        ended, number = group.usage, group.number
        if number is not None:
            cpu_s, rss, io_mb = _measure_group(number)
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
        """Add memory usage over time, assuming that it was constant since the last sample."""
        now = self._monotonic()
        if self._rss is not None:
            self._gb_s = (self._gb_s or 0.0) + self._rss / _GB * (now - self._sampled_at)
        self._rss = rss if rss is not None else self._rss
        self._sampled_at = now

    # --- handlers --------------------------------------------------------------------------------

    async def steps(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a handler's coroutine and measure each of its steps, without the time in which it waits.

        Tasks that it starts are not measured.
        """
        mark = None if self._process is None else self._process.begin()
        try:
            return await _Steps(work, self)
        finally:
            self._end_share(mark)

    def add_cpu(self, seconds: float) -> None:
        """Add processor time."""
        self._cpu_s = seconds if self._cpu_s is None else self._cpu_s + seconds

    def _end_share(self, mark: ShareMark | None) -> None:
        if mark is not None and self._process is not None:
            self._gb_s, self._io_mb = self._process.end(mark)

    async def in_thread(self, call: Awaitable[T]) -> T:
        """Wait for a handler's thread, and charge it the share of its memory and disk transfers."""
        mark = None if self._process is None else self._process.begin()
        try:
            return await call
        finally:
            self._end_share(mark)

    def timed(self, call: Callable[[], T]) -> T:
        """Call a function in the current thread and measure its processor time."""
        if clock_of := getattr(time, "pthread_getcpuclockid", None):  # not on all platforms
            self._thread_clock = clock_of(threading.get_ident())
        began_s = time.thread_time()
        try:
            return call()
        finally:
            self._thread_clock = None
            self._cpu_s = time.thread_time() - began_s


class _Steps(Generic[T]):
    """Drives a coroutine step by step and measures the processor time of each."""

    def __init__(self, work: Coroutine[Any, Any, T], meter: Meter) -> None:
        self._work = work
        self._meter = meter

    def __await__(self) -> Generator[Any, Any, T]:
        resume: Callable[[Any], Any] = self._work.send
        value: Any = None
        while True:
            began_s = time.thread_time()
            try:
                step = resume(value)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._meter.add_cpu(time.thread_time() - began_s)
            try:
                resume, value = self._work.send, (yield step)
            except BaseException as error:  # also a cancellation: the handler decides
                resume, value = self._work.throw, error


# --- shares of a beat ----------------------------------------------------------------------------


class Share:
    """The usage of one attempt since a beat began, the subjects it is charged to, and how to stop it."""

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
        """Return the usage since the beat began."""
        return self._meter.used - self._before

    def count_from(self, epoch_ms: int) -> None:
        """Count from another beat, unless it is the current one."""
        if epoch_ms != self.epoch_ms:
            self.epoch_ms, self._before = epoch_ms, self._meter.used


class BeatExcess(NamedTuple):
    """A ceiling that was exceeded in a beat, and the attempt that used most."""

    excess: Excess
    by: Share


class Shares:
    """The usage of all attempts of a worker in a beat, by agent and account."""

    def __init__(self) -> None:
        self._shares: set[Share] = set()
        self._ended: dict[tuple[str, int], Resources] = {}  # usage of attempts that ended in the beat
        self._reported: dict[str, int] = {}

    def join(self, share: Share) -> None:
        """Add the share of an attempt that starts."""
        self._shares.add(share)

    def leave(self, share: Share) -> None:
        """Remove the share of an attempt that ended; its usage in this beat still counts."""
        self._shares.discard(share)
        self._ended = {key: used for key, used in self._ended.items() if key[1] >= share.epoch_ms}
        for subject in share.subjects:
            key = subject, share.epoch_ms
            self._ended[key] = self._ended.get(key, Resources()) + share.used

    def excess(self, share: Share, subject: str, budget: Budget, beats: float) -> BeatExcess | None:
        """Return the excess of all shares that count from the same beat as this one, or `None`.

        It is returned once per beat: when one attempt is stopped, the others may be within the ceiling.
        """
        epoch_ms = share.epoch_ms
        if not budget.per_beat or self._reported.get(subject) == epoch_ms:
            return None
        sharing = [each for each in self._shares if each.epoch_ms == epoch_ms and subject in each.subjects]
        ended = self._ended.get((subject, epoch_ms), Resources())
        excess = budget.over_in_beat(sum((each.used for each in sharing), ended), beats)
        if excess is None:
            return None
        self._reported[subject] = epoch_ms
        return BeatExcess(excess, max(sharing, key=lambda each: excess.amount_in(each.used)))


def read_process() -> ProcessUsage:
    """Return the usage of this process, as far as the operating system reports it."""
    try:
        rss = int(_STATM.read_text().split()[1]) * _PAGE
    except OSError:  # not Linux
        import psutil  # slow to import

        return ProcessUsage(psutil.Process().memory_info().rss, None)
    try:
        counts = dict(line.split(": ") for line in _IO.read_text().splitlines())
    except OSError:  # a container may forbid it
        return ProcessUsage(rss, None)
    return ProcessUsage(rss, (int(counts["read_bytes"]) + int(counts["write_bytes"])) / _MB)


def _highest(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else max(one, other)


def _measure_group(number: int) -> tuple[float | None, int | None, float | None]:
    """Return CPU seconds, memory in bytes and disk I/O in MB of a group's processes, without its guardian.

    The usage of an ended process is part of its parent's, once the parent has waited for it.
    """
    import psutil  # slow to import, and few jobs are metered

    cpu_s = rss = io_mb = None
    for pid in psutil.pids():
        if pid == number or group_of(pid) != number:
            continue
        with suppress(psutil.Error):  # the process has ended, or access is denied
            process = psutil.Process(pid)
            with process.oneshot():
                cpu_s = _plus(cpu_s, sum(process.cpu_times()[:4]))  # including ended children
                rss = _plus(rss, process.memory_info().rss)
                io_mb = _plus(io_mb, _disk_io_mb(process))
    return cpu_s, None if rss is None else int(rss), io_mb


def _plus(one: float | None, more: float | None) -> float | None:
    return one if more is None else more if one is None else one + more


def _disk_io_mb(process: Any) -> float | None:
    counters = getattr(process, "io_counters", None)  # not on all platforms
    if counters is None:
        return None
    io = counters()
    return float(io.read_bytes + io.write_bytes) / _MB
