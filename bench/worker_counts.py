"""`python -m bench.worker_counts`: what several worker processes count while they share jobs.

One, two and four processes of 64 places work in turn on the same number of jobs, on a server and in a file.
It prints one line for each, the median of the rounds: jobs a second, and by job the processor time of the
workers and of the server. Requests that write, claims and refused ones are of all workers together.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from bench.lines.jobs import done_rate, schedule
from bench.programs.job_worker import COUNTS, SCOPE
from bench.programs.subprocess_driver import ProgramProcess, primary, start_program
from tools.homes import FILE, MESH, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh

_HOMES: Final = {"sqld": MESH, "file": FILE}
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_ANSWER_S: Final = 30.0
_HEADER: Final = (
    f"{'':<8}{'1/s':>7}{'writes':>8}{'reads':>7}{'claims':>8}{'jobs/claim':>12}{'refused':>9}"
    f"{'workers us':>12}{'server us':>11}"
)

Counted = dict[str, float]


async def measure(name: str, workers: int, jobs: int, rounds: int) -> Counted:
    """Have this many processes do all jobs, some times; return the medians by count."""
    home: HomeCase = _HOMES[name]
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vox-workers-")))
        server = stack.enter_context(Server()) if home.needs_server else None
        settings = home.settings(folder, server, scope_id=SCOPE)
        node = await stack.enter_async_context(Mesh.open(settings))
        program = "programs.job_worker"
        started = [
            await stack.enter_async_context(start_program(program, folder, *primary(server)))
            for _ in range(workers)
        ]
        for each in started:
            await each.ready()
        found = []
        for _ in range(rounds + 1):  # the first one warms up
            await schedule(node, jobs)
            before = await _count(started, server)
            rate = await done_rate(started, jobs)
            after = await _count(started, server)
            found.append({"rate": rate} | {key: after[key] - before[key] for key in after})
    return {key: statistics.median(each[key] for each in found[1:]) for key in found[0]}


async def _count(workers: Sequence[ProgramProcess], server: Server | None) -> Counted:
    for each in workers:
        each.send(COUNTS)
    counts: list[Counted] = [await each.report(_ANSWER_S) for each in workers]
    total = {key: sum(each[key] for each in counts) for key in counts[0]}
    return total | {"server_s": 0.0 if server is None else _processor_s(server.pid)}


def _processor_s(pid: int) -> float:
    """Return the seconds of processor time of another process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _line(name: str, workers: int, jobs: int, counted: Counted) -> str:
    return (
        f"{name:<5}{workers:>2} {counted['rate']:>7.0f}{counted['writes']:>8.0f}{counted['reads']:>7.0f}"
        f"{counted['claims']:>8.0f}{counted['jobs'] / counted['claims']:>12.1f}{counted['refused']:>9.0f}"
        f"{counted['cpu_s'] / jobs * 1e6:>12.0f}{counted['server_s'] / jobs * 1e6:>11.0f}"
    )


async def _measure_all(arguments: argparse.Namespace) -> None:
    print(_HEADER)
    for name in arguments.homes or _HOMES:
        for workers in arguments.workers:
            counted = await measure(name, workers, arguments.jobs, arguments.rounds)
            print(_line(name, workers, arguments.jobs, counted), flush=True)


def main() -> None:
    """Measure, and print the counts."""
    parser = argparse.ArgumentParser(prog="python -m bench.worker_counts", description=__doc__)
    parser.add_argument("homes", nargs="*", choices=[[], *_HOMES], help="where (default: everywhere)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], metavar="N", help="processes")
    parser.add_argument("--jobs", type=int, default=1_600, metavar="N", help="of a round (default: 1600)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="rounds of each (default: 5)")
    asyncio.run(_measure_all(parser.parse_args()))


if __name__ == "__main__":
    main()
