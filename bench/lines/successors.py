"""Lines on jobs that wait for others: a step of a chain, and the end of each job that one waits for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter, process_time
from typing import Final

from bench.environment import BenchEnvironment
from bench.figures import Figure, Of, at_most
from bench.measure import alternate
from tools.homes import FILE, MESH_REPLICA, HomeCase
from vox_mesh import JobContext, Mesh
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.node import MeshNode
from vox_mesh.store.script import new_key

_KIND: Final = "bench.step"
_LONG: Final = 1_000
_SHORT: Final = 100
_MANY: Final = 10_000
_FEWER: Final = 1_000
_AT_ONCE: Final = 500
_PLACES: Final = 64
_WAIT_S: Final = 300.0


async def chain_file(environment: BenchEnvironment) -> list[Figure]:
    """Measure the steps of a long and of a short chain, in a file."""
    return await _chain(environment, FILE, "file")


async def chain_sqld(environment: BenchEnvironment) -> list[Figure]:
    """Measure the steps of a long and of a short chain, on a server with a replica."""
    return await _chain(environment, MESH_REPLICA, "sqld")


async def _chain(environment: BenchEnvironment, home: HomeCase, name: str) -> list[Figure]:
    async with _worker(environment, home) as node:
        sides = {count: partial(_step_ms, node, count) for count in (_LONG, _SHORT)}
        found = await alternate(sides, environment.pace.few_rounds)
    what = f"a step of a chain of {_LONG:,} jobs, from one start to the next, {name} / of {_SHORT}"
    return [Figure(f"job-chain-{name}", what, "ms", found[_LONG], found[_SHORT], at_most(1.2))]


async def fan_in_file(environment: BenchEnvironment) -> list[Figure]:
    """Measure a job that waits for many others, in a file."""
    size = _MANY if environment.pace.grows else _FEWER
    async with _worker(environment, FILE) as node:
        awaited: list[float] = []

        async def fan_in_us() -> float:
            job_ids = await _leaves(node, size)
            before = perf_counter()
            last = await node.jobs.schedule(_KIND, after=job_ids)
            awaited.append((perf_counter() - before) * 1e3)
            return await _processor_us(node, last.job_id, size)

        async def plain_us() -> float:
            job_ids = await _leaves(node, size)
            return await _processor_us(node, job_ids[-1], size)

        found = await alternate({"ours": fan_in_us, "raw": plain_us}, environment.pace.few_rounds)
    what = f"processor time of a job for which one with {size:,} predecessors waits, file / of any other"
    scheduled = f"scheduling a job with {size:,} predecessors, file"
    return [
        Figure("job-fan-in-file", what, "us", found["ours"], found["raw"], at_most(1.5)),
        Figure("job-fan-in-scheduled-file", scheduled, "ms", awaited[1:], target=at_most(1_500.0, Of.OURS)),
    ]


@asynccontextmanager
async def _worker(environment: BenchEnvironment, home: HomeCase) -> AsyncIterator[MeshNode]:
    """A node with a handler that does nothing but note when it begins."""
    settings = home.settings(environment.folder, environment.sqld if home.needs_server else None)
    async with Mesh.open(settings) as node:

        @node.worker.handles(_KIND)
        async def do_nothing(context: JobContext) -> None:
            pass

        yield node


async def _step_ms(node: MeshNode, count: int) -> float:
    """Run a chain of this many jobs, and return the time from one start to the next."""
    ulids = [new_key() for _ in range(count)]
    manifests = [
        Manifest.of(kind=_KIND, payload=place, ulid=ulid, after=[ulids[place - 1]] if place else None)
        for place, ulid in enumerate(ulids)
    ]
    for start in range(0, count, _AT_ONCE):
        await node.jobs.schedule_all(manifests[start : start + _AT_ONCE])
    async with node.worker.running():
        last = await node.jobs.wait(ulids[-1], timeout=_WAIT_S)
    first = await node.jobs.find(ulids[0])
    return ((last.started_ms or 0) - (first.started_ms or 0)) / (count - 1)


async def _leaves(node: MeshNode, count: int) -> list[str]:
    job_ids: list[str] = []
    for start in range(0, count, _AT_ONCE):
        manifests = [Manifest.of(kind=_KIND, payload=place) for place in range(start, start + _AT_ONCE)]
        job_ids += [each.job_id for each in await node.jobs.schedule_all(manifests)]
    return job_ids


async def _processor_us(node: MeshNode, last: str, count: int) -> float:
    """Run all jobs until this one has ended, and return the processor time of each."""
    began = process_time()
    async with node.worker.running(concurrency=_PLACES):
        await node.jobs.wait(last, timeout=_WAIT_S)
        await node.worker.idle()
    return (process_time() - began) / count * 1e6
