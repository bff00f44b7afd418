"""A process that only watches: it reports what it saw when, or the CPU time of watching.

Signals: `until N`, answered when it has seen that number, with all numbers seen since the last report and the
moment of each; `idle S`, answered after S seconds, with the CPU time spent meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

import orjson

from bench import workload
from bench.programs.subprocess_driver import add_primary, node_settings
from vox_mesh import Settings, Store, open_store, run


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
            report = await _report(sightings, *signal.split())
            print(orjson.dumps(report).decode(), flush=True)
        watching.cancel()


async def _report(sightings: Sightings, kind: str, value: str) -> object:
    if kind == "until":
        return await sightings.until(int(value))
    before = time.process_time()
    await asyncio.sleep(float(value))
    return time.process_time() - before


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    add_primary(parser)
    arguments = parser.parse_args()
    run(_serve(node_settings(arguments.folder, arguments.primary)))
