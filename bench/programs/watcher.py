"""A process that only watches: it reports what it saw when, or the CPU time of watching.

Signals: `until N`, answered when it has seen that number, with all numbers seen since the last report and the
moment of each; `idle S`, answered after S seconds, with the CPU time spent meanwhile; `read S`, answered with
the median time of a read from the replica, in microseconds; `costs 0`, answered with what was taken so far.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Final

import orjson

from bench import workload
from bench.programs.subprocess_driver import add_primary, node_settings
from vox_mesh import Settings, Store, open_store, run
from vox_mesh.model.base.backends import ReplicaChoice

_READ: Final = "SELECT n FROM bench_pages WHERE id = 1"


class Sightings:
    """The numbers that a watch has shown, and when; the clock is the same for all processes."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, float]] = []
        self._more = asyncio.Event()

    async def watch(self, store: Store) -> None:
        """Watch until cancelled."""
        async for change in store.watch(workload.LATEST):
            self._seen.append((change.rows.value, time.monotonic()))
            self._more.set()

    async def until(self, number: int) -> list[tuple[int, float]]:
        """Wait until the number, or a higher one, has been seen; all that is new, and forget it."""
        while not self._seen or self._seen[-1][0] < number:
            self._more.clear()
            await self._more.wait()
        seen, self._seen = self._seen, []
        return seen


async def _serve(settings: Settings) -> None:
    async with await open_store(settings) as store:
        await store.synced()
        sightings = Sightings()
        watching = asyncio.create_task(sightings.watch(store))
        await sightings.until(0)
        print("ready", flush=True)
        while signal := await asyncio.to_thread(sys.stdin.readline):
            if watching.done():
                watching.result()
            report = await _report(store, sightings, *signal.split())
            print(orjson.dumps(report).decode(), flush=True)
        watching.cancel()


async def _report(store: Store, sightings: Sightings, kind: str, value: str) -> object:
    if kind == "until":
        return await sightings.until(int(value))
    if kind == "read":
        return await _read(store, float(value))
    if kind == "costs":
        return _costs(store)
    before = time.process_time()
    await asyncio.sleep(float(value))
    return time.process_time() - before


async def _read(store: Store, seconds: float) -> float | None:
    took: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        before = time.perf_counter()
        rows = await store.read(_READ)
        if rows.age_s:
            took.append(time.perf_counter() - before)
    return statistics.median(took) * 1e6 if took else None


def _costs(store: Store) -> dict[str, float]:
    status = store.replica_status
    assert status is not None
    is_follower = status.follower_pid in (None, os.getpid())
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    (pss_kb,) = (int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return {
        "cpu_s": time.process_time(),
        "pushed_bytes": status.fetched_bytes if is_follower else 0,
        "memory_kb": pss_kb,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--replica", default=ReplicaChoice.AUTO.value, choices=[*ReplicaChoice])
    add_primary(parser)
    arguments = parser.parse_args()
    run(_serve(node_settings(arguments.folder, arguments.primary, db_replica=arguments.replica)))
