"""The load of this machine: how busy its processors and graphics processors are."""

from __future__ import annotations

import asyncio
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple

_GPU_QUERY: Final = ("--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
_GPU_TIMEOUT_S: Final = 1.0
_GPU_INTERVAL_S: Final = 10.0
_ABSENT_INTERVAL_S: Final = 600.0
"""The time until a GPU that did not answer is asked again: most machines have none."""

_DIGITS: Final = 2


class CpuTimes(NamedTuple):
    """The seconds of all processors since the start of the machine."""

    busy_s: float
    total_s: float


class HostLoad:
    """Samples the utilisation of this machine. A part that can't be measured is `None`, without an error."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        *,
        cpu_times: Callable[[], CpuTimes] | None = None,
        gpu: Callable[[], Awaitable[float | None]] | None = None,
    ) -> None:
        self._monotonic = monotonic
        self._cpu_times = read_cpu_times if cpu_times is None else cpu_times
        self._read_gpu = read_gpu_utilisation if gpu is None else gpu
        self._last: CpuTimes | None = None
        self._gpu_due = monotonic()
        self.cpu: float | None = None
        """The busy share of the processors between the last two samples."""
        self.gpu: float | None = None
        """The mean busy share of the GPUs at the last sample."""

    async def sample(self) -> None:
        """Measure. A GPU is asked every ten seconds at most, with a deadline of one second."""
        now, before = self._cpu_times(), self._last
        self._last = now
        if before is not None and now.total_s > before.total_s:
            share = (now.busy_s - before.busy_s) / (now.total_s - before.total_s)
            self.cpu = round(min(max(share, 0.0), 1.0), _DIGITS)
        if self._monotonic() >= self._gpu_due:
            self.gpu = await self._read_gpu()
            pause_s = _ABSENT_INTERVAL_S if self.gpu is None else _GPU_INTERVAL_S
            self._gpu_due = self._monotonic() + pause_s


def read_cpu_times() -> CpuTimes:
    """Return the times of all processors."""
    import psutil  # slow to import, and only nodes need it

    times = psutil.cpu_times()._asdict()
    # Linux counts the time of guests twice.
    total_s = sum(times.values()) - times.get("guest", 0.0) - times.get("guest_nice", 0.0)
    return CpuTimes(total_s - times["idle"] - times.get("iowait", 0.0), total_s)


async def read_gpu_utilisation(program: str = "nvidia-smi") -> float | None:
    """Return the mean utilisation of all GPUs, or `None` if the program is missing or does not answer."""
    path = shutil.which(program)
    if path is None:
        return None
    try:
        process = await asyncio.create_subprocess_exec(
            path, *_GPU_QUERY, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(_GPU_TIMEOUT_S):
            out, _ = await process.communicate()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            process.kill()
            with suppress(TimeoutError):  # a process that hangs in its driver does not end
                async with asyncio.timeout(_GPU_TIMEOUT_S):
                    await process.wait()
    return parse_gpu_utilisation(out.decode(errors="replace")) if process.returncode == 0 else None


def parse_gpu_utilisation(text: str) -> float | None:
    """Return the mean of the percentages, one per line; lines such as [N/A] are skipped."""
    shares = [int(line) / 100 for line in text.split("\n") if line.strip().isdecimal()]
    return round(min(sum(shares) / len(shares), 1.0), _DIGITS) if shares else None
