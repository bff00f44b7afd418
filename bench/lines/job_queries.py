"""Lines on a large roster: what questions to it cost, and what jobs cost among many that are finished."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from bench.bulk_rows import fill_jobs
from bench.environment import BenchEnvironment
from bench.figures import Figure, Of, at_least, at_most
from bench.lines.jobs import JobSetup, done_rate, job_setup, jobs_of_a_round, schedule
from bench.measure import alternate, median_us
from tools.homes import FILE, MESH, HomeCase
from vox_mesh import Script, Statement
from vox_mesh.model.jobs.records import JobState
from vox_mesh.node import MeshNode

_FINISHED: Final = 1_000_000
_QUICK: Final = 100  # times fewer, for a short look


@dataclass(frozen=True, slots=True)
class _Question:
    name: str
    what: str
    ask: Callable[[MeshNode], Awaitable[object]]


_KINDS: Final = [f"bench.kind-{number}" for number in range(10)]
_QUESTIONS: Final = (
    _Question("state", "the state of one job", lambda node: node.jobs.queries.find(f"{'0' * 63}1")),
    _Question(
        "pending", "100 jobs of a kind to be done", lambda node: node.jobs.queries.ready(_KINDS[:1], 100)
    ),
    _Question("overdue", "jobs past their deadline", lambda node: node.jobs.queries.overdue()),
    _Question("ready", "100 jobs of 10 kinds to be done", lambda node: node.jobs.queries.ready(_KINDS, 100)),
    _Question("counts", "how many of each kind and state", lambda node: node.jobs.queries.counts()),
    _Question("oldest", "the oldest pending of each kind", lambda node: node.jobs.queries.oldest_pending()),
    _Question(
        "failed", "the latest 100 that failed", lambda node: node.jobs.queries.listed(state=JobState.FAILED)
    ),
)


async def roster(environment: BenchEnvironment) -> list[Figure]:
    """Half of the jobs pending, half of them finished."""
    count = _FINISHED if environment.pace.settled else _FINISHED // _QUICK
    own = replace(environment, folder=environment.folder / "roster")
    async with job_setup(own, FILE) as mesh:
        node = mesh.node
        await fill_jobs(node, count // 2)
        await fill_jobs(node, count // 2, pending=True)
        await node.store.write(
            Script(
                Statement(
                    "UPDATE jobs SET job_id = ? WHERE id = (SELECT max(id) FROM jobs)", (f"{'0' * 63}1",)
                )
            )
        )

        async def ask_ms(question: _Question) -> float:
            return await median_us(lambda: question.ask(node), environment.pace.seconds) / 1e3

        sides: dict[str, Callable[[], Awaitable[float]]] = {"raw": mesh.raw.p50_ms}
        sides |= {each.name: partial(ask_ms, each) for each in _QUESTIONS}
        found = await alternate(sides, environment.pace.rounds)
    return [
        Figure(
            f"job-roster-{each.name}",
            f"{each.what}, among {count:,}, p50 / {mesh.raw.what}, p50",
            "ms",
            found[each.name],
            found["raw"],
            at_most(10.0, Of.OURS),
        )
        for each in _QUESTIONS
    ]


async def crowded_sqld(environment: BenchEnvironment) -> list[Figure]:
    """On a server."""
    return await _crowded(environment, MESH, "sqld")


async def crowded_file(environment: BenchEnvironment) -> list[Figure]:
    """In a file."""
    return await _crowded(environment, FILE, "file")


async def _crowded(environment: BenchEnvironment, home: HomeCase, name: str) -> list[Figure]:
    """Compare jobs among many finished ones with an empty roster."""
    finished = _FINISHED if environment.pace.settled else _FINISHED // _QUICK
    count = jobs_of_a_round(environment)
    scheduled: dict[str, list[float]] = {"crowded": [], "calm": []}
    async with (
        job_setup(
            replace(environment, folder=environment.folder / f"crowded-{name}"), home, workers=1
        ) as crowded,
        job_setup(replace(environment, folder=environment.folder / f"calm-{name}"), home, workers=1) as calm,
    ):
        await fill_jobs(crowded.node, finished)

        async def done(side: str, mesh: JobSetup) -> float:
            scheduled[side].append(count / await schedule(mesh.node, count))
            return await done_rate(mesh.workers, count)

        sides = {"crowded": lambda: done("crowded", crowded), "calm": lambda: done("calm", calm)}
        found = await alternate(sides, environment.pace.rounds)
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
