"""Lines on a fleet: what a node costs that has nothing to do, and how soon one of many begins a job."""

from __future__ import annotations

import statistics
from typing import Any, Final

from bench.environment import BenchEnvironment
from bench.figures import Figure, Of, Target, at_most
from bench.programs.idle_fleet import IDLE, JOBS, NodeCosts
from bench.programs.subprocess_driver import ProgramProcess, primary, start_program
from tools.sqld import Server

_MOST_PERCENT: Final = {1: 0.2, 17: 0.2, 65: 0.25}
_MOST_KB: Final = 5.0
_MOST_BEGUN_MS: Final = 15.0
_MOST_REFUSED: Final = 2.0
_QUICK_SIZE: Final = 3
_QUICK_JOBS: Final = 3
_JOBS: Final = 20
_START_S: Final = 180.0
_SETTLE_S: Final = 180.0  # until all have written what they write once, such as their tempo
_LONGER: Final = 6  # an idle node sends a heartbeat a minute
_JOB_S: Final = 30.0


async def fleet(environment: BenchEnvironment) -> list[Figure]:
    """Fleets of several sizes, each node in a process and, for all it knows, on a machine of its own."""
    sizes = list(_MOST_PERCENT) if environment.pace.settled else [_QUICK_SIZE]
    return [figure for size in sizes for figure in await _measure(environment, size)]


async def _measure(environment: BenchEnvironment, size: int) -> list[Figure]:
    is_settled, seconds = environment.pace.settled, _LONGER * environment.pace.idle_s
    jobs = _JOBS if is_settled else _QUICK_JOBS
    folder = environment.folder / f"fleet-{size}"
    with Server() as server:
        async with start_program("programs.idle_fleet", folder, size, *primary(server)) as program:
            await program.ready(_START_S)
            if is_settled:
                await _ask(program, IDLE, _SETTLE_S, _SETTLE_S)
            costs = [NodeCosts._make(each) for each in await _ask(program, IDLE, seconds, seconds)]
            begun = await _ask(program, JOBS, jobs, jobs * _JOB_S)
    percent = statistics.mean(each.cpu_s for each in costs) / seconds * 100
    kilobytes = statistics.mean(each.pushed_bytes for each in costs) / seconds / 1e3
    refused = begun["refused"] / begun["begun"] * 10
    found = (
        ("cpu", "share of a core that each takes", "%", percent, _MOST_PERCENT.get(size)),
        ("pushed", "pushed by the server to each", "kB/s", kilobytes, _MOST_KB),
        ("begun", "from scheduling a job to its start, p50", "ms", _p50(begun), _MOST_BEGUN_MS),
        ("refused", "refused claims for ten jobs", "1", refused, _MOST_REFUSED),
    )
    return [
        Figure(f"fleet-{size}-{name}", f"{size} idle nodes: {what}", unit, [value], target=_target(most))
        for name, what, unit, value, most in found
    ]


def _p50(begun: Any) -> float:
    return float(statistics.median(begun["delays_ms"]))


def _target(most: float | None) -> Target | None:
    return None if most is None else at_most(most, Of.OURS)


async def _ask(program: ProgramProcess, signal: str, amount: float, seconds: float) -> Any:
    program.send(f"{signal} {amount}")
    return await program.report(seconds)
