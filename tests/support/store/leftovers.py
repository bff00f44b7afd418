"""What a store could leave behind in its process: tasks, threads, open files."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Final

_PATIENCE_S: Final = 30.0
_TURNS: Final = 10
"""Turns of the event loop within which a connection that was closed lets go of its socket."""


def descriptors() -> set[str]:
    """What each open file descriptor is of, where the system tells."""
    folder = Path("/proc/self/fd")
    if not folder.exists():
        return set()
    names = set()
    for entry in folder.iterdir():
        try:
            names.add(f"{entry.name} {entry.readlink()}")
        except OSError:
            continue  # that of this very look
    return names


def left_behind(before: set[str]) -> list[str]:
    """All that is here now, but for the files that were open before."""
    tasks = [task.get_name() for task in _other_tasks()]
    threads = [thread.name for thread in _own_threads()]
    return tasks + threads + sorted(descriptors() - before)


async def assert_nothing_left(before: set[str]) -> None:
    """What is about to end may do so; then nothing is here but the files that were open before."""
    if tasks := _other_tasks():
        await asyncio.wait(tasks, timeout=_PATIENCE_S)
    for thread in _own_threads():
        await asyncio.to_thread(thread.join, _PATIENCE_S)
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    left = left_behind(before)
    assert left == [], left


def _other_tasks() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


def _own_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("vox-mesh")]
