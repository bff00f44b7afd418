"""The lag of an event loop, and how much of it the machine is to blame for.

A loop is late when its process computes or blocks, and also when the machine is busy with others. The second
is measured by a process that does nothing else: how much longer than its time on a processor does work take?
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Final

from proof.chaos.protocol import append_events_to
from proof.history import Recorder

_EVERY_S: Final = 0.05
_NOTED_S: Final = 0.2
_WORK_S: Final = 0.02
_SAMPLE_S: Final = 0.15
MACHINE: Final = "machine"


async def watch_loop(recorder: Recorder) -> None:
    """Note whenever this loop is late, until cancelled; and at times that it was not."""
    worst, samples = 0.0, 0
    while True:
        began, used = time.monotonic(), time.thread_time()
        await asyncio.sleep(_EVERY_S)
        late_s = time.monotonic() - began - _EVERY_S
        worst, samples = max(worst, late_s), samples + 1
        if late_s >= _NOTED_S:
            computed_s = time.thread_time() - used
            recorder.note("loop.late", since=began, seconds=late_s, computed=computed_s)
        if samples % 20 == 0:
            recorder.note("loop.watched", samples=20, worst=worst)
            worst = 0.0


def measure_machine(recorder: Recorder) -> None:
    """Note by how much this machine stretches a piece of work, until the parent process is gone."""
    parent = os.getppid()
    while os.getppid() == parent:
        began, used = time.monotonic(), time.thread_time()
        while time.thread_time() - used < _WORK_S:
            pass
        stretch = (time.monotonic() - began) / (time.thread_time() - used)
        recorder.note("machine.stretch", since=began, stretch=stretch)
        time.sleep(_SAMPLE_S)


def main() -> None:
    """Measure, and write to the folder that is named."""
    path = Path(sys.argv[1]) / f"{MACHINE}.jsonl"
    measure_machine(Recorder(MACHINE, 1, time.monotonic, append_events_to(path)))


if __name__ == "__main__":
    main()
