"""Lines on jobs: how many are scheduled and done, and how soon one begins."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, Final, NamedTuple

from bench.environment import BenchEnvironment
from bench.figures import Figure, Of, at_least, at_most, delay_figures
from bench.limits import Limit, raw_limit
from bench.measure import alternate
from bench.programs.job_worker import FOLLOW, FOLLOWED, NOOP, SCOPE, WORK
from bench.programs.subprocess_driver import ProgramProcess, primary, start_program
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
_MOST_OVERHEAD: Final = 1.15
_SCORE: Final = {"phases": {"plan": 2, "work": 4, "review": 2}, "start": "now"}


@dataclass(frozen=True, slots=True)
class JobSetup:
    """A node that schedules, the processes that work, and the raw limit of what they write to."""

    node: MeshNode
    workers: Sequence[ProgramProcess]
    raw: Limit


@asynccontextmanager
async def job_setup(
    environment: BenchEnvironment, home: HomeCase, workers: int = 0
) -> AsyncIterator[JobSetup]:
    """On a database of its own."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(Server()) if home.needs_server else None
        settings = home.settings(environment.folder, server, scope_id=SCOPE)
        node = await stack.enter_async_context(Mesh.open(settings))
        started = [
            await stack.enter_async_context(
                start_program("programs.job_worker", environment.folder, *primary(server))
            )
            for _ in range(workers)
        ]
        for each in started:
            await each.ready()
        raw = await stack.enter_async_context(raw_limit(environment.folder, server, environment.pace.seconds))
        yield JobSetup(node, started, raw)


def _manifests(score: Mapping[str, Any] | None) -> list[Manifest]:
    fields = {} if score is None else {"score": score}
    return [Manifest.of(kind=NOOP, payload={"step": number}, **fields) for number in range(_AT_ONCE)]


async def schedule(node: MeshNode, count: int, score: Mapping[str, Any] | None = None) -> float:
    """Schedule this many, a hundred at a time; return the seconds that took."""
    before = perf_counter()
    for _ in range(count // _AT_ONCE):
        await node.jobs.schedule_all(_manifests(score), new=True)
    return perf_counter() - before


def jobs_of_a_round(environment: BenchEnvironment, each_second: int = DONE_EACH_SECOND) -> int:
    """How many jobs a round takes, in whole calls."""
    return max(1, round(environment.pace.seconds * each_second) // _AT_ONCE) * _AT_ONCE


# --- how many ----------------------------------------------------------------------------------------


async def scheduled_sqld(environment: BenchEnvironment) -> list[Figure]:
    """On a server."""
    return await _schedule_rates(environment, MESH, "sqld", 8_000.0)


async def scheduled_file(environment: BenchEnvironment) -> list[Figure]:
    """In a file."""
    return await _schedule_rates(environment, FILE, "file", 12_000.0)


async def _schedule_rates(
    environment: BenchEnvironment, home: HomeCase, name: str, reach: float
) -> list[Figure]:
    count = jobs_of_a_round(environment, _SCHEDULED)
    own = replace(environment, folder=environment.folder / f"scheduled-{name}")
    async with job_setup(own, home) as mesh:

        async def rate() -> float:
            return count / await schedule(mesh.node, count)

        found = await alternate({"ours": rate, "raw": mesh.raw.per_second}, environment.pace.rounds)
    what = f"jobs scheduled by one process, {_AT_ONCE} at a time, {name} / {mesh.raw.what}"
    target = at_least(reach, Of.OURS)
    return [Figure(f"job-scheduled-{name}", what, "1/s", found["ours"], found["raw"], target)]


async def done_sqld(environment: BenchEnvironment) -> list[Figure]:
    """On a server, with a replica for each worker."""
    return await _done_rates(environment, MESH, "sqld", 1, 2_500.0) + await _done_rates(
        environment, MESH, "sqld", 4, 1_200.0
    )


async def done_file(environment: BenchEnvironment) -> list[Figure]:
    """In a file."""
    return await _done_rates(environment, FILE, "file", 1, 3_500.0) + await _done_rates(
        environment, FILE, "file", 4, 4_000.0
    )


async def _done_rates(
    environment: BenchEnvironment, home: HomeCase, name: str, workers: int, reach: float
) -> list[Figure]:
    count = jobs_of_a_round(environment)
    own = replace(environment, folder=environment.folder / f"done-{name}-{workers}")
    async with job_setup(own, home, workers=workers) as mesh:

        async def rate() -> float:
            await schedule(mesh.node, count)
            return await done_rate(mesh.workers, count)

        found = await alternate({"ours": rate, "raw": mesh.raw.per_second}, environment.pace.rounds)
    who = "one worker process" if workers == 1 else f"{workers} worker processes"
    what = f"jobs claimed, run and completed by {who}, {name} / {mesh.raw.what}"
    target = at_least(reach, Of.OURS)
    return [Figure(f"job-done-{workers}-{name}", what, "1/s", found["ours"], found["raw"], target)]


async def done_rate(workers: Sequence[ProgramProcess], count: int) -> float:
    """Have all done that were scheduled; how many a second."""
    return (await _all_done(workers, count)).per_second


class _Done(NamedTuple):
    """How many jobs were done a second, and the processor time of each in microseconds."""

    per_second: float
    cpu_us: float


async def _all_done(workers: Sequence[ProgramProcess], count: int) -> _Done:
    before = time.monotonic_ns()
    for worker in workers:
        worker.send(WORK)
    reports = [await worker.report(_WAIT_S) for worker in workers]
    done: int = sum(jobs for jobs, *_ in reports)
    if done != count:
        raise RuntimeError(f"{done} jobs were done, not {count}")
    last: int = max(last for _, last, _ in reports)
    cpu_s: float = sum(each for *_, each in reports)
    return _Done(count / ((last - before) / 1e9), cpu_s / count * 1e6)


async def scored_file(environment: BenchEnvironment) -> list[Figure]:
    """Measure jobs with a score against jobs without one, in a file."""
    count = jobs_of_a_round(environment)
    own = replace(environment, folder=environment.folder / "scored-file")
    async with job_setup(own, FILE, workers=1) as mesh:

        async def done(score: Mapping[str, Any] | None) -> _Done:
            await schedule(mesh.node, count, score)
            return await _all_done(mesh.workers, count)

        sides = {"scored": partial(done, _SCORE), "plain": partial(done, None)}
        found = await alternate(sides, environment.pace.rounds)
    scored, plain = found["scored"], found["plain"]
    what = "file: jobs with a score claimed, run and completed by one worker process / jobs without a score"
    rates, plain_rates = [each.per_second for each in scored], [each.per_second for each in plain]
    cpu, plain_cpu = [each.cpu_us for each in scored], [each.cpu_us for each in plain]
    at_least_this, at_most_this = at_least(1 / _MOST_OVERHEAD), at_most(_MOST_OVERHEAD)
    return [
        Figure("job-scored-file", what, "1/s", rates, plain_rates, at_least_this),
        Figure("job-scored-cpu-file", f"processor time, {what}", "us", cpu, plain_cpu, at_most_this),
    ]


# --- how soon ----------------------------------------------------------------------------------------


async def begun_sqld(environment: BenchEnvironment) -> list[Figure]:
    """On a server, seen in a replica."""
    return await _start_delays(environment, MESH_REPLICA, "sqld", 7.0, 25.0)


async def begun_file(environment: BenchEnvironment) -> list[Figure]:
    """In a file."""
    return await _start_delays(environment, FILE, "file", 5.0, 20.0)


async def _start_delays(
    environment: BenchEnvironment, home: HomeCase, name: str, p50_ms: float, p99_ms: float
) -> list[Figure]:
    times = max(10, round(environment.pace.seconds * _FOLLOWED))
    own = replace(environment, folder=environment.folder / f"begun-{name}")
    async with job_setup(own, home, workers=1) as mesh:
        node, (worker,) = mesh.node, mesh.workers
        worker.send(FOLLOW)
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

        measured = await alternate({"ours": delays_ms, "raw": insert_ms}, environment.pace.rounds)
    pairs, inserts = measured["ours"], [each[0][0] for each in measured["raw"]]
    rounds = [[since for since, _ in each] for each in pairs]
    from_call = statistics.median(whole for each in pairs for _, whole in each)
    what = f"from a job's being scheduled to its handler in another process, idle mesh, {name},"
    limit = mesh.raw.what, inserts
    p50_figure, p99_figure = delay_figures(f"job-begun-{name}", what, rounds, limit, (p50_ms, p99_ms))
    return [replace(p50_figure, notes={"p50 from the call of schedule": from_call}), p99_figure]
