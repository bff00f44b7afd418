"""Lines on jobs: how many are scheduled and done, and how soon one begins."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final

from bench.environment import Ground
from bench.figures import Figure, Of, at_least, at_most
from bench.limits import Limit, raw_limit
from bench.measure import alternate, p99
from bench.programs.job_worker import FOLLOW, FOLLOWED, NOOP, SCOPE, WORK
from bench.programs.subprocess_driver import Companion, companion, primary
from tools.homes import FILE, MESH, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.node import MeshNode

_AT_ONCE: Final = 100
_SCHEDULED: Final = 8_000  # jobs for each second of a round
DONE_EACH_SECOND: Final = 4_000
_FOLLOWED: Final = 60
_IDLE_S: Final = 0.1
_WAIT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Staffed:
    """A node that schedules, the processes that work, and the raw limit of what they write to."""

    node: MeshNode
    workers: Sequence[Companion]
    raw: Limit


@asynccontextmanager
async def staffed(ground: Ground, home: HomeCase, workers: int = 0) -> AsyncIterator[Staffed]:
    """On a database of its own."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(Server()) if home.needs_server else None
        settings = home.settings(ground.folder, server, scope_id=SCOPE)
        node = await stack.enter_async_context(Mesh.open(settings))
        started = [
            await stack.enter_async_context(companion("programs.job_worker", ground.folder, *primary(server)))
            for _ in range(workers)
        ]
        for each in started:
            await each.ready()
        raw = await stack.enter_async_context(raw_limit(ground.folder, server, ground.pace.seconds))
        yield Staffed(node, started, raw)


def _manifests(count: int = _AT_ONCE) -> list[Manifest]:
    return [Manifest.of(kind=NOOP, payload={"step": number}) for number in range(count)]


async def schedule(node: MeshNode, count: int) -> float:
    """Schedule so many, a hundred at a time; the seconds that took."""
    before = perf_counter()
    for _ in range(count // _AT_ONCE):
        await node.jobs.schedule_all(_manifests(), new=True)
    return perf_counter() - before


def jobs_of_a_round(ground: Ground, each_second: int = DONE_EACH_SECOND) -> int:
    """How many jobs a round takes, in whole calls."""
    return max(1, round(ground.pace.seconds * each_second) // _AT_ONCE) * _AT_ONCE


# --- how many ----------------------------------------------------------------------------------------


async def scheduled_sqld(ground: Ground) -> list[Figure]:
    """On a server."""
    return await _scheduled(ground, MESH, "sqld", 8_000.0)


async def scheduled_file(ground: Ground) -> list[Figure]:
    """In a file."""
    return await _scheduled(ground, FILE, "file", 12_000.0)


async def _scheduled(ground: Ground, home: HomeCase, name: str, reach: float) -> list[Figure]:
    count = jobs_of_a_round(ground, _SCHEDULED)
    own = replace(ground, folder=ground.folder / f"scheduled-{name}")
    async with staffed(own, home) as mesh:

        async def rate() -> float:
            return count / await schedule(mesh.node, count)

        found = await alternate({"ours": rate, "raw": mesh.raw.per_second}, ground.pace.rounds)
    what = f"jobs scheduled by one process, {_AT_ONCE} at a time, {name} / {mesh.raw.what}"
    target = at_least(reach, Of.OURS)
    return [Figure(f"job-scheduled-{name}", what, "1/s", found["ours"], found["raw"], target)]


async def done_sqld(ground: Ground) -> list[Figure]:
    """On a server, with a replica for each worker."""
    return await _done(ground, MESH, "sqld", 1, 2_500.0) + await _done(ground, MESH, "sqld", 4, 1_200.0)


async def done_file(ground: Ground) -> list[Figure]:
    """In a file."""
    return await _done(ground, FILE, "file", 1, 3_500.0) + await _done(ground, FILE, "file", 4, 4_000.0)


async def _done(ground: Ground, home: HomeCase, name: str, workers: int, reach: float) -> list[Figure]:
    count = jobs_of_a_round(ground)
    own = replace(ground, folder=ground.folder / f"done-{name}-{workers}")
    async with staffed(own, home, workers=workers) as mesh:

        async def rate() -> float:
            await schedule(mesh.node, count)
            return await done_rate(mesh.workers, count)

        found = await alternate({"ours": rate, "raw": mesh.raw.per_second}, ground.pace.rounds)
    who = "one worker process" if workers == 1 else f"{workers} worker processes"
    what = f"jobs claimed, run and completed by {who}, {name} / {mesh.raw.what}"
    target = at_least(reach, Of.OURS)
    return [Figure(f"job-done-{workers}-{name}", what, "1/s", found["ours"], found["raw"], target)]


async def done_rate(workers: Sequence[Companion], count: int) -> float:
    """Have all done that were scheduled; how many a second."""
    before = time.monotonic_ns()
    for worker in workers:
        worker.tell(WORK)
    reports = [await worker.report(_WAIT_S) for worker in workers]
    done: int = sum(jobs for jobs, _ in reports)
    if done != count:
        raise RuntimeError(f"{done} jobs were done, not {count}")
    last: int = max(last for _, last in reports)
    return count / ((last - before) / 1e9)


# --- how soon ----------------------------------------------------------------------------------------


async def begun_sqld(ground: Ground) -> list[Figure]:
    """On a server, seen in a replica."""
    return await _begun(ground, MESH_REPLICA, "sqld", 7.0, 25.0)


async def begun_file(ground: Ground) -> list[Figure]:
    """In a file."""
    return await _begun(ground, FILE, "file", 5.0, 20.0)


async def _begun(ground: Ground, home: HomeCase, name: str, p50_ms: float, p99_ms: float) -> list[Figure]:
    times = max(10, round(ground.pace.seconds * _FOLLOWED))
    own = replace(ground, folder=ground.folder / f"begun-{name}")
    async with staffed(own, home, workers=1) as mesh:
        node, (worker,) = mesh.node, mesh.workers
        worker.tell(FOLLOW)
        await worker.report(_WAIT_S)

        async def delays_ms() -> list[tuple[float, float]]:
            found: list[tuple[float, float]] = []
            for _ in range(times):
                called = time.monotonic_ns()
                scheduled = await node.jobs.schedule(FOLLOWED, called)
                call_ms = (time.monotonic_ns() - called) / 1e6
                delay_ms = await worker.report(_WAIT_S)
                found.append((delay_ms - call_ms, delay_ms))
                await node.jobs.wait(scheduled, timeout=_WAIT_S)
                await asyncio.sleep(_IDLE_S)
            return found

        async def insert_ms() -> list[tuple[float, float]]:
            return [(await mesh.raw.p50_ms(), 0.0)]

        measured = await alternate({"ours": delays_ms, "raw": insert_ms}, ground.pace.rounds)
    pairs, inserts = measured["ours"], [each[0][0] for each in measured["raw"]]
    rounds = [[since for since, _ in each] for each in pairs]
    pooled = list(itertools.chain.from_iterable(rounds))
    from_call = statistics.median(whole for each in pairs for _, whole in each)
    what = f"from a job's being scheduled to its handler in another process, idle mesh, {name},"
    beside = f"/ {mesh.raw.what}, p50"
    return [
        Figure(
            f"job-begun-{name}-p50",
            f"{what} p50 {beside}",
            "ms",
            [statistics.median(each) for each in rounds],
            inserts,
            target=at_most(p50_ms, Of.OURS),
            notes={"p50 from the call of schedule": from_call},
        ),
        Figure(
            f"job-begun-{name}-p99",
            f"{what} p99 {beside}",
            "ms",
            [p99(each) for each in rounds],
            inserts,
            target=at_most(p99_ms, Of.OURS),
            notes={"p99 of all rounds together": p99(pooled), "longest": max(pooled)},
        ),
    ]
