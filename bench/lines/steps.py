"""Lines on durable steps: what one costs, how many a worker stores, and jobs that were suspended."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter
from typing import Final, NamedTuple

from bench.environment import BenchEnvironment
from bench.figures import Figure, Of, at_least, at_most
from bench.limits import Limit, raw_limit
from bench.measure import alternate
from bench.programs.job_worker import SCOPE
from bench.programs.step_worker import ASKING, MEMORY
from bench.programs.subprocess_driver import ProgramProcess, start_program
from tools.homes import FILE, MESH_REPLICA, HomeCase
from vox_mesh import JobContext, Mesh
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.node import MeshNode

_STEPPING: Final = "bench.stepping"
_RESULT: Final = "x" * 198  # 200 bytes of JSON
_EACH_SECOND: Final = 1_000
_EACH_SECOND_OF_JOBS: Final = 250  # of each of them
_LEAST: Final = 20
_JOBS: Final = 64
_STORED: Final = 1_000
_SUSPENDED: Final = 10_000
_QUICK: Final = 10  # times fewer, for a short look
_FEW: Final = 100
_WOKEN: Final = 30
_AT_ONCE: Final = 100
_WAIT_S: Final = 300.0
_MB: Final = 1_000_000

_Side = Callable[[], Awaitable[float]]


async def _result() -> str:
    return _RESULT


class _Steps:
    """A handler whose steps do nothing. Jobs that run at the same time begin with their steps together."""

    def __init__(self, node: MeshNode) -> None:
        self._node = node
        self._took_s: list[float] = []
        self._arrived = asyncio.Semaphore(0)
        self._may_begin = asyncio.Event()
        node.worker.handles(_STEPPING)(self._handle)

    async def _handle(self, context: JobContext) -> None:
        self._arrived.release()
        await self._may_begin.wait()
        for _ in range(context.payload):
            before = perf_counter()
            await context.step("step", _result)
            self._took_s.append(perf_counter() - before)

    async def run(self, jobs: int, steps: int) -> float:
        """Run jobs with this many steps each; return the seconds from the first step to the last."""
        self._took_s.clear()
        self._may_begin.clear()
        manifests = [Manifest.of(kind=_STEPPING, payload=steps) for _ in range(jobs)]
        scheduled = await self._node.jobs.schedule_all(manifests, new=True)
        for _ in range(jobs):
            await self._arrived.acquire()
        before = perf_counter()
        self._may_begin.set()
        for each in scheduled:
            await self._node.jobs.wait(each, timeout=_WAIT_S)
        took_s = perf_counter() - before
        if len(self._took_s) != jobs * steps:
            raise RuntimeError(f"{len(self._took_s)} steps were run, not {jobs * steps}")
        return took_s

    async def p50_ms(self, steps: int) -> float:
        """Return the median time of a step, one after another."""
        await self.run(1, steps)
        return statistics.median(self._took_s) * 1e3

    async def per_second(self, steps: int) -> float:
        """Return the steps per second of many jobs."""
        return _JOBS * steps / await self.run(_JOBS, steps)


class _Stepping(NamedTuple):
    """A worker of steps, and the raw limit of what it writes to."""

    steps: _Steps
    raw: Limit


@asynccontextmanager
async def _stepping(environment: BenchEnvironment, home: HomeCase) -> AsyncIterator[_Stepping]:
    folder, server = environment.folder, environment.sqld if home.needs_server else None
    async with (
        Mesh.open(home.settings(folder, server)) as node,
        raw_limit(folder, server, environment.pace.seconds) as raw,
    ):
        steps = _Steps(node)
        async with node.worker.running(concurrency=_JOBS):
            yield _Stepping(steps, raw)


# --- running steps -----------------------------------------------------------------------------------


async def one_file(environment: BenchEnvironment) -> list[Figure]:
    """One step after another, in a file."""
    return await _one(environment, FILE, "file", 1.2)


async def one_sqld(environment: BenchEnvironment) -> list[Figure]:
    """One step after another, on a server with a replica."""
    return await _one(environment, MESH_REPLICA, "sqld", 2.5)


async def _one(environment: BenchEnvironment, home: HomeCase, name: str, most_ms: float) -> list[Figure]:
    pace = environment.pace
    count = max(_LEAST, round(pace.seconds * _EACH_SECOND))
    async with _stepping(environment, home) as (steps, raw):
        sides: dict[str, _Side] = {"ours": partial(steps.p50_ms, count), "raw": raw.p50_ms}
        found = await alternate(sides, pace.rounds)
    what = f"a step with a result of 200 bytes, {name}, p50 / {raw.what}, p50"
    target = at_most(most_ms, Of.OURS)
    return [Figure(f"steps-one-{name}", what, "ms", found["ours"], found["raw"], target)]


async def rate_file(environment: BenchEnvironment) -> list[Figure]:
    """Steps of many jobs of one worker, in a file."""
    return await _rate(environment, FILE, "file", 6_000.0)


async def rate_sqld(environment: BenchEnvironment) -> list[Figure]:
    """Steps of many jobs of one worker, on a server with a replica."""
    return await _rate(environment, MESH_REPLICA, "sqld", 3_000.0)


async def _rate(environment: BenchEnvironment, home: HomeCase, name: str, reach: float) -> list[Figure]:
    pace = environment.pace
    count = max(_LEAST, round(pace.seconds * _EACH_SECOND_OF_JOBS))
    async with _stepping(environment, home) as (steps, raw):
        sides: dict[str, _Side] = {"ours": partial(steps.per_second, count), "raw": raw.per_second}
        found = await alternate(sides, pace.few_rounds)
    what = f"steps of {_JOBS} jobs of one worker, {name} / {raw.what}"
    target = at_least(reach, Of.OURS)
    return [Figure(f"steps-rate-{name}", what, "1/s", found["ours"], found["raw"], target)]


# --- going on ----------------------------------------------------------------------------------------


async def resume(environment: BenchEnvironment) -> list[Figure]:
    """A job that goes on after many stored steps, and one without any, in a file."""
    went_on = asyncio.Queue[float]()
    async with Mesh.open(FILE.settings(environment.folder, None)) as node:

        @node.worker.handles(ASKING)
        async def ask(context: JobContext) -> None:
            for _ in range(context.payload):
                await context.step("step", _result)
            await context.ask("When?")
            went_on.put_nowait(perf_counter())

        async def delay_ms(steps: int) -> float:
            scheduled = await node.jobs.schedule(ASKING, steps)
            await _all_suspended(node, 1)
            job = await node.jobs.find(scheduled.job_id)
            await node.jobs.questions.answer(job, "now")
            before = perf_counter()
            async with asyncio.timeout(_WAIT_S):
                took_ms = (await went_on.get() - before) * 1e3
            await node.jobs.wait(scheduled, timeout=_WAIT_S)
            return took_ms

        sides = {"ours": partial(delay_ms, _STORED), "raw": partial(delay_ms, 0)}
        async with node.worker.running():
            found = await alternate(sides, environment.pace.rounds)
    what = f"from the answer until a job with {_STORED:,} stored steps goes on, file / one without steps"
    return [Figure("steps-resume", what, "ms", found["ours"], found["raw"], at_most(50.0, Of.OURS))]


class _WithSuspended(NamedTuple):
    """The peak of a worker's memory, and the times in which jobs went on."""

    peak_bytes: int
    delays_ms: list[float]


async def suspended(environment: BenchEnvironment) -> list[Figure]:
    """A worker in a process of its own, with few and with many suspended jobs, in a file."""
    size = _SUSPENDED if environment.pace.settled else _SUSPENDED // _QUICK
    settings = FILE.settings(environment.folder, None, scope_id=SCOPE)
    async with (
        Mesh.open(settings) as node,
        start_program("programs.step_worker", environment.folder) as worker,
    ):
        await worker.ready()
        few = await _measure(node, worker, _FEW)
        many = await _measure(node, worker, size)
    what = f"with {size:,} suspended jobs, file"
    grown_mb = (many.peak_bytes - few.peak_bytes) / _MB
    woken_ms = statistics.median(many.delays_ms)
    return [
        Figure(
            "steps-suspended-memory",
            f"growth of a worker {what}",
            "MB",
            [grown_mb],
            target=at_most(5.0, Of.OURS),
        ),
        Figure(
            "steps-suspended-woken",
            f"from the answer until a job goes on in another process, {what}, p50 / with {_FEW}",
            "ms",
            [woken_ms],
            [statistics.median(few.delays_ms)],
            at_most(10.0, Of.OURS),
            notes={"longest": max(many.delays_ms)},
        ),
    ]


async def _measure(node: MeshNode, worker: ProgramProcess, size: int) -> _WithSuspended:
    """Have this many jobs suspended, and wake some of them."""
    missing = size - await _count_suspended(node)
    for start in range(0, missing, _AT_ONCE):
        count = min(_AT_ONCE, missing - start)
        await node.jobs.schedule_all([Manifest.of(kind=ASKING) for _ in range(count)], new=True)
    await _all_suspended(node, size)
    worker.send(MEMORY)
    peak = await worker.report(_WAIT_S)
    asking = await node.jobs.queries.listed(kind=ASKING, limit=_WOKEN)
    return _WithSuspended(peak, [await _woken_ms(node, worker, each.job_id) for each in asking])


async def _woken_ms(node: MeshNode, worker: ProgramProcess, job_id: str) -> float:
    job = await node.jobs.find(job_id)
    called = time.monotonic_ns()
    await node.jobs.questions.answer(job, called)
    call_ms = (time.monotonic_ns() - called) / 1e6
    delay_ms: float = await worker.report(_WAIT_S)
    await node.jobs.wait(job, timeout=_WAIT_S)
    return delay_ms - call_ms


async def _all_suspended(node: MeshNode, count: int) -> None:
    async with asyncio.timeout(_WAIT_S):
        async for _ in node.store.changes():
            if await _count_suspended(node) >= count:
                break


async def _count_suspended(node: MeshNode) -> int:
    sql = "SELECT count(*) FROM jobs WHERE kind = ? AND state = 'pending' AND waits > 0"
    return int((await node.store.read(sql, (ASKING,), fresh=True)).value)
