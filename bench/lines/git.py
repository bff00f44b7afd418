"""Lines on jobs in git: how many an export writes."""

from __future__ import annotations

import asyncio
import resource
import statistics
from dataclasses import replace
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

from bench.environment import BenchEnvironment
from bench.figures import Figure, Of, at_least
from bench.lines.jobs import done_rate, job_setup, schedule
from bench.measure import alternate
from tools.homes import FILE
from vox_mesh.jobs.git.repository import GitRepository
from vox_mesh.node import MeshNode

_JOBS: Final = 2_000
_QUICK: Final = 200


class _Export(NamedTuple):
    jobs_per_s: float
    cpu_ms: float
    """The processor time of a job, in this process and in git."""


async def export(environment: BenchEnvironment) -> list[Figure]:
    """Compare an export to an empty repository with git's own import of the same commits and refs."""
    jobs = _JOBS if environment.pace.settled else _QUICK
    own = replace(environment, folder=environment.folder / "git")
    numbers = count()
    async with job_setup(own, FILE, workers=1) as mesh:
        await schedule(mesh.node, jobs)
        await done_rate(mesh.workers, jobs)
        first = await _new_repository(own.folder / "first")
        await _exported(mesh.node, first)
        stream = await _git(first, "fast-export", "--all")

        async def ours() -> _Export:
            return await _timed(mesh.node, await _new_repository(own.folder / f"ours-{next(numbers)}"))

        async def raw() -> _Export:
            folder = await _new_repository(own.folder / f"raw-{next(numbers)}")
            before = perf_counter()
            await _git(folder, "fast-import", "--quiet", stdin=stream)
            return _Export(jobs / (perf_counter() - before), 0.0)

        found = await alternate({"ours": ours, "raw": raw}, environment.pace.rounds)
    cpu_ms = statistics.median(each.cpu_ms for each in found["ours"])
    return [
        Figure(
            "git-export",
            f"{jobs:,} jobs that have ended, exported to an empty repository / `git fast-import` of the same",
            "1/s",
            [each.jobs_per_s for each in found["ours"]],
            [each.jobs_per_s for each in found["raw"]],
            at_least(1_000.0, Of.OURS),
            notes={"processor time of a job, in ms": cpu_ms},
        )
    ]


async def _timed(node: MeshNode, folder: Path) -> _Export:
    before, cpu_before = perf_counter(), _cpu_s()
    jobs = await _exported(node, folder)
    return _Export(jobs / (perf_counter() - before), (_cpu_s() - cpu_before) / jobs * 1e3)


async def _exported(node: MeshNode, folder: Path) -> int:
    report = await node.job_exporter(await GitRepository.open(folder)).run()
    if report.created != 3 * report.jobs or report.refused:
        raise RuntimeError(f"not every job was exported: {report}")
    return report.jobs


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


async def _new_repository(folder: Path) -> Path:
    await _git(folder.parent, "init", "--quiet", folder.name)
    return folder


async def _git(folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    process = await asyncio.create_subprocess_exec(
        *("git", "-C", str(folder), *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate(stdin)
    if process.returncode != 0:
        raise RuntimeError(f"git {arguments[0]} ended with {process.returncode}")
    return output
