"""A process that runs a workflow of ten steps, ours or that of DBOS, each as its documentation shows first.

Signals: `one N`, answered with the median milliseconds of a workflow, of N one after another; `many N`,
answered with the workflows per second, of N that are started together.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Final

import orjson

from bench.programs.subprocess_driver import node_settings
from vox_mesh import JobContext, Mesh, run

OURS: Final = "ours"
DBOS_SIDE: Final = "dbos"
_KIND: Final = "workflow"
_STEPS: Final = 10
_PLACES: Final = 16
_RESULT: Final = "x" * 198  # 200 bytes of JSON


def _report(value: float) -> None:
    print(orjson.dumps(value).decode(), flush=True)


def _step(number: int) -> str:
    return f"{number}{_RESULT[1:]}"


# --- ours --------------------------------------------------------------------------------------------


async def _serve_ours(place: str) -> None:
    folder, *of_primary = orjson.loads(place)
    async with Mesh.open(node_settings(Path(folder), of_primary or None)) as mesh:

        @mesh.worker.handles(_KIND)
        async def workflow(context: JobContext) -> int:
            results = [await context.step("step", _async_step, number) for number in range(_STEPS)]
            return len(results)

        async with mesh.worker.running(concurrency=_PLACES):
            print("ready", flush=True)
            while signal := (await asyncio.to_thread(sys.stdin.readline)).split():
                of_signal = _ours_one if signal[0] == "one" else _ours_many
                _report(await of_signal(mesh, int(signal[1])))


async def _async_step(number: int) -> str:
    return _step(number)


async def _ours_one(mesh: Mesh, count: int) -> float:
    took_ms = []
    for _ in range(count):
        before = perf_counter()
        await mesh.jobs.result(await mesh.jobs.schedule(_KIND))
        took_ms.append((perf_counter() - before) * 1e3)
    return statistics.median(took_ms)


async def _ours_many(mesh: Mesh, count: int) -> float:
    before = perf_counter()
    jobs = [await mesh.jobs.schedule(_KIND) for _ in range(count)]
    for job in jobs:
        await mesh.jobs.result(job)
    return count / (perf_counter() - before)


# --- DBOS --------------------------------------------------------------------------------------------


def _serve_dbos(url: str) -> None:
    from dbos import DBOS

    DBOS(config={"name": "bench", "system_database_url": url, "console_log_level": "ERROR"})
    step = DBOS.step()(_step)

    def ten_steps() -> int:
        return len([step(number) for number in range(_STEPS)])

    workflow = DBOS.workflow()(ten_steps)
    DBOS.launch()

    def many(count: int) -> float:
        before = perf_counter()
        handles = [DBOS.start_workflow(workflow) for _ in range(count)]
        for handle in handles:
            handle.get_result()
        return count / (perf_counter() - before)

    print("ready", flush=True)
    while signal := sys.stdin.readline().split():
        count = int(signal[1])
        _report(_one(workflow, count) if signal[0] == "one" else many(count))
    DBOS.destroy()


def _one(workflow: Callable[[], int], count: int) -> float:
    took_ms = []
    for _ in range(count):
        before = perf_counter()
        workflow()
        took_ms.append((perf_counter() - before) * 1e3)
    return statistics.median(took_ms)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=(OURS, DBOS_SIDE))
    parser.add_argument("place")
    arguments = parser.parse_args()
    if arguments.side == DBOS_SIDE:
        _serve_dbos(arguments.place)
    else:
        run(_serve_ours(arguments.place))
