"""Lines on watching: how soon another process sees a commit, and what it costs to wait for one."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from bench import workload
from bench.environment import Ground
from bench.figures import Figure, Of, at_most
from bench.limits import raw_limit
from bench.measure import alternate, p99
from bench.programs.subprocess_driver import Companion, companion, primary
from tools.homes import FILE, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh import Store

_FIRST_NUMBER: Final = 1_000  # above all that the workload writes
_GAP_S: Final = 0.01
_ROUND_FACTOR: Final = 6  # longer rounds: of a few commits the slowest in a hundred can't be told
_SEED: Final = 20_261_115


@dataclass(frozen=True, slots=True)
class Watched:
    """A store that writes, and a process that watches the same database."""

    store: Store
    watcher: Companion


@asynccontextmanager
async def _watched(ground: Ground, home: HomeCase) -> AsyncIterator[Watched]:
    server = ground.server if home.needs_server else None
    async with ground.store(home) as store:
        await store.synced()
        async with companion("programs.watcher", ground.folder, *primary(server)) as watcher:
            await watcher.ready()
            yield Watched(store, watcher)


# --- from a commit to the other process ------------------------------------------------------------


async def visible_mesh(ground: Ground) -> list[Figure]:
    """On a server: the other process follows it with a replica."""
    with Server() as server:
        return await _visible(replace(ground, server=server), MESH_REPLICA, "mesh", 5.0, 25.0)


async def visible_file(ground: Ground) -> list[Figure]:
    """In a file that both have open."""
    return await _visible(ground, FILE, "file", 4.0, 20.0)


async def _visible(ground: Ground, home: HomeCase, name: str, p50_ms: float, p99_ms: float) -> list[Figure]:
    commits = round(ground.pace.seconds * _ROUND_FACTOR / _GAP_S)
    chance = random.Random(_SEED)
    numbers = itertools.count(_FIRST_NUMBER)
    server = ground.server if home.needs_server else None
    async with (
        _watched(ground, home) as both,
        raw_limit(ground.folder, server, ground.pace.seconds) as raw,
    ):

        async def delays() -> list[float]:
            return await _delays_ms(both, itertools.islice(numbers, commits), chance)

        async def insert_ms() -> list[float]:
            return [await raw.p50_ms()]

        rounds = await alternate({"ours": delays, "raw": insert_ms}, ground.pace.rounds)
    found, inserts = rounds["ours"], [each[0] for each in rounds["raw"]]
    what = f"{name}: from the write call to another process's watch,"
    beside = f"/ {raw.what}, p50"
    pooled = list(itertools.chain.from_iterable(found))
    notes = {"p99 of all rounds together": p99(pooled), "longest": max(pooled)}
    return [
        Figure(
            f"visible-{name}-p50",
            f"{what} p50 {beside}",
            "ms",
            [statistics.median(each) for each in found],
            inserts,
            target=at_most(p50_ms, Of.OURS),
        ),
        Figure(
            f"visible-{name}-p99",
            f"{what} p99 {beside}",
            "ms",
            [p99(each) for each in found],
            inserts,
            target=at_most(p99_ms, Of.OURS),
            notes=notes,
        ),
    ]


async def _delays_ms(both: Watched, numbers: Iterable[int], chance: random.Random) -> list[float]:
    """Write the numbers, at about a hundred a second; how long each took to be seen."""
    sent: list[tuple[int, float]] = []
    for number in numbers:
        await asyncio.sleep(chance.uniform(0.5, 1.5) * _GAP_S)
        sent.append((number, time.monotonic()))
        await both.store.write(workload.numbered_insert(number))
    both.watcher.tell(f"until {sent[-1][0]}")
    seen: list[tuple[int, float]] = [tuple(each) for each in await both.watcher.report(0.0)]
    # A watch may show several commits at once: then a number is seen with the one that follows it.
    return [(seen[bisect_left(seen, (number, 0.0))][1] - moment) * 1e3 for number, moment in sent]


# --- waiting ---------------------------------------------------------------------------------------


async def idle(ground: Ground) -> list[Figure]:
    """Both homes at once: what does next to nothing disturbs nobody."""
    with Server() as server:
        on_mesh = replace(ground, server=server, folder=ground.folder / "mesh")
        on_file = replace(ground, folder=ground.folder / "file")
        async with _watched(on_mesh, MESH_REPLICA) as mesh, _watched(on_file, FILE) as file:
            spent = await _idle_percent([mesh.watcher, file.watcher], ground.pace.idle_s)
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


async def _idle_percent(watchers: Sequence[Companion], seconds: float) -> list[float]:
    for watcher in watchers:
        watcher.tell(f"idle {seconds}")
    return [await watcher.report(seconds) / seconds * 100 for watcher in watchers]
