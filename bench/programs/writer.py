"""One process of a fleet: it reads how long to write from its input, writes, and reports."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from time import perf_counter

import orjson

from bench import measure, workload
from tools.homes import FILE
from vox_mesh import Store, open_store, run


async def _serve(folder: Path, callers: int, *, settled: bool) -> None:
    async with await open_store(FILE.settings(folder, None, scope_id="bench")) as store:
        await workload.prepare(store, settled=settled)
        print("ready", flush=True)
        while signal := await asyncio.to_thread(sys.stdin.readline):
            print(orjson.dumps(await _round(store, callers, float(signal))).decode(), flush=True)


async def _round(store: Store, callers: int, seconds: float) -> dict[str, float]:
    longest = 0.0

    async def write() -> None:
        nonlocal longest
        before = perf_counter()
        await store.write(workload.two_inserts())
        longest = max(longest, perf_counter() - before)

    per_second = await measure.rate(write, seconds, callers)
    return {"per_second": per_second, "longest_wait_ms": longest * 1e3}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("callers", type=int)
    parser.add_argument("--settled", action="store_true")
    arguments = parser.parse_args()
    run(_serve(arguments.folder, arguments.callers, settled=arguments.settled))
