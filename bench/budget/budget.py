"""Measure the budgets: processor time by layer, the floor of the same statements, and what is above it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import process_time, thread_time
from typing import Final

from bench import workload
from bench.budget.layers import LOOP, layers_of
from bench.budget.paths import HotPath, node_paths, store_path
from bench.budget.requests import recorded
from bench.measure import Pace
from bench.raw import raw_socket
from tools.homes import FILE, MEMORY, MESH
from tools.sqld import Server
from vox_mesh.store.script import WriterId
from vox_mesh.store.write.script_batch import NOTHING_TO_PRUNE, OptimisticBatch

_EACH_SECOND: Final = 1_000
_LEAST: Final = 20
_RECORDINGS: Final = 5
_WRITER: Final = WriterId("bench", "default", "bench")
_STATEMENTS: Final = 4  # of a write: the ends of the transaction, the key, the insert
THREADS: Final = "other threads"
"""In a file: the thread that writes, with SQLite in it."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What one operation of a path takes, in microseconds of this process's processor time.

    `floor`: the same statements by a bare client. `layers`: the parts of `ours`. `calls`: of functions, in
    the thread of the event loop.
    """

    name: str
    what: str
    ours: float
    floor: float
    statements: float
    calls: float
    layers: Mapping[str, float]


async def measure(folder: Path, server: Server, pace: Pace) -> list[Budget]:
    """Measure all paths, one after another."""
    times = max(_LEAST, round(_EACH_SECOND * pace.seconds))
    found = []
    async with store_path(folder / "sqld", MESH, server) as write:
        found.append(await _on_server(write, server, times))
    async with store_path(folder / "memory", MEMORY, None) as write:
        found.append(await _in_sqlite(write, ":memory:", times))
    async with store_path(folder / "file", FILE, None) as write:
        found.append(await _in_sqlite(write, str(folder / "write.db"), times))
    async with node_paths(folder / "node") as paths:
        found += [await _in_sqlite(path, str(folder / f"{path.name}.db"), times) for path in paths]
    return found


async def _in_sqlite(path: HotPath, copy: str, times: int) -> Budget:
    """Record a few operations and run their statements again at once: they carry the time they expect."""
    found = []
    await path.prepare(_LEAST)
    await path.run(_LEAST)
    for number in range(_RECORDINGS):
        with recorded() as recording:
            await path.prepare(1)
            await path.run(1)
            await path.prepare(path.recorded)
            recording.begin(copy if copy == ":memory:" else f"{copy}-{number}")
            await path.run(path.recorded)
            seconds, statements = recording.run_again()
        found.append((seconds / path.recorded * 1e6, statements / path.recorded))
    floor, statements_each = statistics.median_low(found)
    return await _budget(path, times, floor, statements_each)


async def _on_server(path: HotPath, server: Server, times: int) -> Budget:
    """Compare with the same batch on a bare socket: sent unchanged, its answer not looked at."""
    batches = [
        OptimisticBatch(_WRITER, [workload.one_insert()], NOTHING_TO_PRUNE) for _ in range(_LEAST + times)
    ]
    await path.run(_LEAST)
    async with raw_socket(server) as socket:
        for batch in batches[:_LEAST]:
            await socket.run(batch)
        before = process_time()
        for batch in batches[_LEAST:]:
            await socket.run(batch)
        floor = (process_time() - before) / times * 1e6
    return await _budget(path, times, floor, _STATEMENTS)


async def _budget(path: HotPath, times: int, floor: float, statements: float) -> Budget:
    await path.prepare(times)
    before, before_here = process_time(), thread_time()
    await path.run(times)
    ours, here = process_time() - before, thread_time() - before_here
    await path.prepare(times)
    layers, calls = await layers_of(lambda: path.run(times), times)
    spent = sum(layers.values())
    here_us = here / times * 1e6
    scale = min(1.0, here_us / spent)  # what a profile adds differs from call to call
    found = {name: us * scale for name, us in layers.items()}
    found[LOOP] += max(0.0, here_us - spent)  # uvloop's own time is in no profile
    found[THREADS] = (ours - here) / times * 1e6
    return Budget(path.name, path.what, ours / times * 1e6, floor, statements, calls, found)
