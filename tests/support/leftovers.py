"""What a store could leave behind in its process: tasks, threads, open files."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path


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
    tasks = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("vox-mesh")]
    return tasks + threads + sorted(descriptors() - before)
