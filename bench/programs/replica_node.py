"""A process with a replica, its own or a shared one, that watches a number.

Signals: `until N`, answered when it has seen that number, with all numbers seen since and the moment of
each; `read S`, answered with the median time of a read from the copy in microseconds; `costs 0`,
answered with what the process has taken so far.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

import orjson

from bench.programs.subprocess_driver import add_primary
from bench.programs.watcher import Sightings
from tools.homes import MESH_REPLICA, MESH_SHARED
from vox_mesh import Store, open_store, run

_CASES: Final = {"own": MESH_REPLICA, "shared": MESH_SHARED}
_READ: Final = "SELECT n FROM bench_pages WHERE id = 1"


async def _serve(arguments: argparse.Namespace) -> None:
    case = _CASES[arguments.kind]
    url, token = arguments.primary
    settings = case.settings(arguments.folder, None, db_url=url, db_token=token, db_driver=case.driver)
    settings = settings.model_copy(update={"db_replica": case.replica})
    async with await open_store(settings) as store:
        await store.synced()
        sightings = Sightings()
        watching = asyncio.create_task(sightings.watch(store))
        await sightings.until(0)
        print("ready", flush=True)
        while signal := await asyncio.to_thread(sys.stdin.readline):
            kind, value = signal.split()
            report: Any
            if kind == "until":
                report = await sightings.until(int(value))
            else:
                report = await _read(store, float(value)) if kind == "read" else _costs(store)
            print(orjson.dumps(report).decode(), flush=True)
        watching.cancel()


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
    parser.add_argument("kind", choices=[*_CASES])
    add_primary(parser)
    run(_serve(parser.parse_args()))
