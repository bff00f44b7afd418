"""Lines on jobs: how many are scheduled and done, how soon one begins, and what a large roster costs."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final

from bench.companion import Companion, companion, primary
from bench.figures import Figure, Of, at_least, at_most
from bench.ground import Ground
from bench.labourer import FOLLOW, FOLLOWED, NOOP, SCOPE, WORK
from bench.measure import alternate, median_us, p99
from tools.homes import FILE, MESH, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh, Script, Statement
from vox_mesh.model.jobs import JobState
from vox_mesh.model.manifest import Manifest
from vox_mesh.node import MeshNode
from vox_mesh.store.script import new_key

_AT_ONCE: Final = 100
_SCHEDULED: Final = 8_000  # jobs for each second of a round
_DONE: Final = 4_000
_FOLLOWED: Final = 100
_IDLE_S: Final = 0.1
_WAIT_S: Final = 120.0
_FINISHED: Final = 1_000_000
_QUICK: Final = 100  # times fewer, for a short look
_FILLED_AT_ONCE: Final = 20_000
_FILL: Final = """
    INSERT INTO jobs (
        scope_id, repository_id, job_id, ulid, kind, state, priority, not_before_ms, max_attempts, backoff_ms,
        claim_token, attempts, created_ms, started_ms, ended_ms, scheduled_by, seed, last_op, manifest)
    WITH RECURSIVE n (i) AS (SELECT ?3 UNION ALL SELECT i + 1 FROM n WHERE i < ?4 - 1)
    SELECT ?1, ?2, lower(hex(randomblob(32))), printf('%s%013d', ?5, i), 'bench.kind-' || (i % 10),
        iif(i % 100 = 0, 'failed', iif(?7, 'pending', 'succeeded')), 1, ?6, 3, 1000,
        1, 1, ?6, ?6, iif(?7 AND i % 100 <> 0, NULL, ?6), 'bench', lower(hex(randomblob(32))), ?5,
        '{"kind":"bench"}'
    FROM n
"""


@asynccontextmanager
async def _mesh(
    ground: Ground, home: HomeCase, workers: int = 0
) -> AsyncIterator[tuple[MeshNode, list[Companion]]]:
    """A node that schedules, on a database of its own, and so many processes that work."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(Server()) if home.needs_server else None
        settings = home.settings(ground.folder, server, scope_id=SCOPE)
        node = await stack.enter_async_context(Mesh.open(settings))
        started = [
            await stack.enter_async_context(companion("labourer", ground.folder, *primary(server)))
            for _ in range(workers)
        ]
        for each in started:
            await each.ready()
        yield node, started


def _manifests(count: int = _AT_ONCE) -> list[Manifest]:
    return [Manifest.of(kind=NOOP, payload={"step": number}) for number in range(count)]


async def _schedule(node: MeshNode, count: int) -> float:
    """Schedule so many, a hundred at a time; the seconds that took."""
    before = perf_counter()
    for _ in range(count // _AT_ONCE):
        await node.jobs.schedule_all(_manifests(), new=True)
    return perf_counter() - before


def _count(ground: Ground, each_second: int) -> int:
    return max(1, round(ground.pace.seconds * each_second) // _AT_ONCE) * _AT_ONCE


# --- how many ----------------------------------------------------------------------------------------


async def scheduled_sqld(ground: Ground) -> list[Figure]:
    """On a server."""
    return await _scheduled(ground, MESH, "sqld", 8_000.0)


async def scheduled_file(ground: Ground) -> list[Figure]:
    """In a file."""
    return await _scheduled(ground, FILE, "file", 12_000.0)


async def _scheduled(ground: Ground, home: HomeCase, name: str, reach: float) -> list[Figure]:
    count = _count(ground, _SCHEDULED)
    own = replace(ground, folder=ground.folder / f"scheduled-{name}")
    async with _mesh(own, home) as (node, _):

        async def rate() -> float:
            return count / await _schedule(node, count)

        found = await alternate({"ours": rate}, ground.pace.rounds)
    return [
        Figure(
            f"job-scheduled-{name}",
            f"jobs scheduled by one process, {_AT_ONCE} at a time, {name}",
            "1/s",
            found["ours"],
            target=at_least(reach, Of.OURS),
        )
    ]


async def done_sqld(ground: Ground) -> list[Figure]:
    """On a server, with a replica for each worker."""
    return await _done(ground, MESH, "sqld", 1, 2_500.0) + await _done(ground, MESH, "sqld", 4, 1_200.0)


async def done_file(ground: Ground) -> list[Figure]:
    """In a file."""
    return await _done(ground, FILE, "file", 1, 3_500.0) + await _done(ground, FILE, "file", 4, 4_000.0)


async def _done(ground: Ground, home: HomeCase, name: str, workers: int, reach: float) -> list[Figure]:
    count = _count(ground, _DONE)
    own = replace(ground, folder=ground.folder / f"done-{name}-{workers}")
    async with _mesh(own, home, workers=workers) as (node, started):

        async def rate() -> float:
            await _schedule(node, count)
            return await _done_rate(started, count)

        found = await alternate({"ours": rate}, ground.pace.rounds)
    who = "one worker process" if workers == 1 else f"{workers} worker processes"
    return [
        Figure(
            f"job-done-{workers}-{name}",
            f"jobs claimed, run and completed by {who}, {name}",
            "1/s",
            found["ours"],
            target=at_least(reach, Of.OURS),
        )
    ]


async def _done_rate(workers: Sequence[Companion], count: int) -> float:
    """Have all done that were scheduled; how many a second."""
    before = time.monotonic_ns()
    for worker in workers:
        worker.tell(WORK)
    reports = [await worker.report(_WAIT_S) for worker in workers]
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
    async with _mesh(own, home, workers=1) as (node, (worker,)):
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

        pairs = (await alternate({"ours": delays_ms}, ground.pace.rounds))["ours"]
    rounds = [[since for since, _ in each] for each in pairs]
    pooled = list(itertools.chain.from_iterable(rounds))
    from_call = statistics.median(whole for each in pairs for _, whole in each)
    what = f"from a job's being scheduled to its handler in another process, idle mesh, {name},"
    return [
        Figure(
            f"job-begun-{name}-p50",
            f"{what} p50",
            "ms",
            [statistics.median(each) for each in rounds],
            target=at_most(p50_ms, Of.OURS),
            notes={"p50 from the call of schedule": from_call},
        ),
        Figure(
            f"job-begun-{name}-p99",
            f"{what} p99",
            "ms",
            [p99(each) for each in rounds],
            target=at_most(p99_ms, Of.OURS),
            notes={"p99 of all rounds together": p99(pooled), "longest": max(pooled)},
        ),
    ]


# --- a large roster ----------------------------------------------------------------------------------


async def _fill(node: MeshNode, count: int, *, pending: bool = False) -> None:
    """Put so many jobs into the roster: finished, or still to be done."""
    prefix, now_ms = new_key()[:13], time.time_ns() // 1_000_000
    for first in range(0, count, _FILLED_AT_ONCE):
        values = (first, min(first + _FILLED_AT_ONCE, count), prefix, now_ms, int(pending))
        await node.store.write(Script(Statement(_FILL, (*node.store.tenant[:2], *values))), timeout=120)


@dataclass(frozen=True, slots=True)
class _Question:
    name: str
    what: str
    ask: Callable[[MeshNode], Awaitable[object]]


_KINDS: Final = [f"bench.kind-{number}" for number in range(10)]
_QUESTIONS: Final = (
    _Question("state", "the state of one job", lambda node: node.jobs.roster.find(f"{'0' * 63}1")),
    _Question(
        "pending", "100 jobs of a kind to be done", lambda node: node.jobs.roster.ready(_KINDS[:1], 100)
    ),
    _Question("overdue", "jobs past their deadline", lambda node: node.jobs.roster.overdue()),
    _Question("ready", "100 jobs of 10 kinds to be done", lambda node: node.jobs.roster.ready(_KINDS, 100)),
    _Question("counts", "how many of each kind and state", lambda node: node.jobs.roster.counts()),
    _Question("oldest", "the oldest pending of each kind", lambda node: node.jobs.roster.oldest_pending()),
    _Question(
        "failed", "the latest 100 that failed", lambda node: node.jobs.roster.listed(state=JobState.FAILED)
    ),
)


async def roster(ground: Ground) -> list[Figure]:
    """Half of the jobs pending, half of them finished."""
    count = _FINISHED if ground.pace.settled else _FINISHED // _QUICK
    own = replace(ground, folder=ground.folder / "roster")
    async with _mesh(own, FILE) as (node, _):
        await _fill(node, count // 2)
        await _fill(node, count // 2, pending=True)
        await node.store.write(
            Script(
                Statement(
                    "UPDATE jobs SET job_id = ? WHERE id = (SELECT max(id) FROM jobs)", (f"{'0' * 63}1",)
                )
            )
        )

        async def ask_ms(question: _Question) -> float:
            return await median_us(lambda: question.ask(node), ground.pace.seconds) / 1e3

        sides = {each.name: (lambda each=each: ask_ms(each)) for each in _QUESTIONS}
        found = await alternate(sides, ground.pace.rounds)
    return [
        Figure(
            f"job-roster-{each.name}",
            f"{each.what}, among {count:,}, p50",
            "ms",
            found[each.name],
            target=at_most(10.0, Of.OURS),
        )
        for each in _QUESTIONS
    ]


async def crowded_sqld(ground: Ground) -> list[Figure]:
    """On a server."""
    return await _crowded(ground, MESH, "sqld")


async def crowded_file(ground: Ground) -> list[Figure]:
    """In a file."""
    return await _crowded(ground, FILE, "file")


async def _crowded(ground: Ground, home: HomeCase, name: str) -> list[Figure]:
    """What jobs cost among many that are finished, beside an empty roster."""
    finished = _FINISHED if ground.pace.settled else _FINISHED // _QUICK
    count = _count(ground, _DONE)
    scheduled: dict[str, list[float]] = {"crowded": [], "calm": []}
    async with (
        _mesh(replace(ground, folder=ground.folder / f"crowded-{name}"), home, workers=1) as (crowded, ours),
        _mesh(replace(ground, folder=ground.folder / f"calm-{name}"), home, workers=1) as (calm, theirs),
    ):
        await _fill(crowded, finished)

        async def schedule(side: str, node: MeshNode, workers: Sequence[Companion]) -> float:
            scheduled[side].append(count / await _schedule(node, count))
            return await _done_rate(workers, count)

        sides = {
            "crowded": lambda: schedule("crowded", crowded, ours),
            "calm": lambda: schedule("calm", calm, theirs),
        }
        found = await alternate(sides, ground.pace.rounds)
    what = f"among {finished:,} finished ones / in an empty roster, {name}"
    return [
        Figure(
            f"job-crowded-done-{name}",
            f"jobs claimed, run and completed by one process {what}",
            "1/s",
            found["crowded"],
            found["calm"],
            at_least(0.9),
        ),
        Figure(
            f"job-crowded-scheduled-{name}",
            f"jobs scheduled {what}",
            "1/s",
            scheduled["crowded"][1:],
            scheduled["calm"][1:],
            at_least(0.65),
        ),
    ]
