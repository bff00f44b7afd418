"""Lines on watching: how soon another process sees a commit, and what it costs to wait for one."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from bench import workload
from bench.environment import BenchEnvironment
from bench.figures import Figure, Of, at_most, delay_figures
from bench.limits import raw_limit
from bench.measure import alternate
from bench.programs.subprocess_driver import ProgramProcess, primary, start_program
from tools.homes import FILE, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh import Store

_FIRST_NUMBER: Final = 1_000  # above all that the workload writes
_GAP_S: Final = 0.01
_ROUND_FACTOR: Final = 6  # longer rounds: a few commits have no 99th percentile
_SEED: Final = 20_261_115


@dataclass(frozen=True, slots=True)
class Watched:
    """A store that writes, and a process that watches the same database."""

    store: Store
    watcher: ProgramProcess


@asynccontextmanager
async def _watched(environment: BenchEnvironment, home: HomeCase) -> AsyncIterator[Watched]:
    server = environment.server if home.needs_server else None
    async with environment.store(home) as store:
        await store.synced()
        async with start_program("programs.watcher", environment.folder, *primary(server)) as watcher:
            await watcher.ready()
            yield Watched(store, watcher)


# --- from a commit to the other process ------------------------------------------------------------


async def visible_mesh(environment: BenchEnvironment) -> list[Figure]:
    """On a server: the other process follows it with a replica."""
    with Server() as server:
        return await _visible(replace(environment, server=server), MESH_REPLICA, "mesh", 5.0, 25.0)


async def visible_file(environment: BenchEnvironment) -> list[Figure]:
    """In a file that both have open."""
    return await _visible(environment, FILE, "file", 4.0, 20.0)


async def _visible(
    environment: BenchEnvironment, home: HomeCase, name: str, p50_ms: float, p99_ms: float
) -> list[Figure]:
    commits = round(environment.pace.seconds * _ROUND_FACTOR / _GAP_S)
    rng = random.Random(_SEED)
    numbers = itertools.count(_FIRST_NUMBER)
    server = environment.server if home.needs_server else None
    async with (
        _watched(environment, home) as both,
        raw_limit(environment.folder, server, environment.pace.seconds) as raw,
    ):

        async def delays() -> list[float]:
            return await _delays_ms(both, itertools.islice(numbers, commits), rng)

        async def insert_ms() -> list[float]:
            return [await raw.p50_ms()]

        rounds = await alternate({"ours": delays, "raw": insert_ms}, environment.pace.rounds)
    found, inserts = rounds["ours"], [each[0] for each in rounds["raw"]]
    what = f"{name}: from the write call to another process's watch,"
    return delay_figures(f"visible-{name}", what, found, (raw.what, inserts), (p50_ms, p99_ms))


async def _delays_ms(both: Watched, numbers: Iterable[int], rng: random.Random) -> list[float]:
    """Write the numbers, at about a hundred a second; how long each took to be seen."""
    sent: list[tuple[int, float]] = []
    for number in numbers:
        await asyncio.sleep(rng.uniform(0.5, 1.5) * _GAP_S)
        sent.append((number, time.monotonic()))
        await both.store.write(workload.numbered_insert(number))
    both.watcher.send(f"until {sent[-1][0]}")
    seen: list[tuple[int, float]] = [tuple(each) for each in await both.watcher.report(0.0)]
    # A watch may show several commits at once: then a number is seen with the one that follows it.
    return [(seen[bisect_left(seen, (number, 0.0))][1] - moment) * 1e3 for number, moment in sent]


# --- waiting ---------------------------------------------------------------------------------------


async def idle(environment: BenchEnvironment) -> list[Figure]:
    """Measure both backends at once: they hardly disturb each other."""
    with Server() as server:
        on_mesh = replace(environment, server=server, folder=environment.folder / "mesh")
        on_file = replace(environment, folder=environment.folder / "file")
        async with _watched(on_mesh, MESH_REPLICA) as mesh, _watched(on_file, FILE) as file:
            spent = await _idle_percent([mesh.watcher, file.watcher], environment.pace.idle_s)
            for both in (mesh, file):  # one that had stopped watching would cost little as well
                await _delays_ms(both, [_FIRST_NUMBER], random.Random(_SEED))
    return [
        Figure(
            f"idle-{name}",
            f"{name}: share of a core that a process takes which only watches",
            "%",
            [percent],
            target=at_most(1.0, Of.OURS),
        )
        for name, percent in zip(("mesh", "file"), spent, strict=True)
    ]


async def _idle_percent(watchers: Sequence[ProgramProcess], seconds: float) -> list[float]:
    for watcher in watchers:
        watcher.send(f"idle {seconds}")
    return [await watcher.report(seconds) / seconds * 100 for watcher in watchers]
