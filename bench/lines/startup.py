"""Lines on the start of commands, each as a multiple of an interpreter that does nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Final, NamedTuple

from bench.environment import BenchEnvironment
from bench.figures import Figure, at_most
from bench.measure import QUICK, alternate

_ROUNDS: Final = 20
_BARE: Final = "bare"
_NO_BYTECODE: Final = "PYTHONDONTWRITEBYTECODE"
_COMMANDS: Final = {
    "help": (("--help",), 7.0),
    "lock": (("lock", "acquire", "task:{}", "--agent", "bench"), 14.0),
    "guard": (("guard", "check", "a.txt", "--agent", "bench"), 14.0),
    "send": (("send", "reviewer", "hello", "--from", "bench"), 14.0),
    "nodes": (("nodes", "--json"), 14.0),
}
"""The commands, and the most they may take, as a multiple."""


class Took(NamedTuple):
    """What one run took, in milliseconds: on the clock, and of all processors."""

    wall_ms: float
    cpu_ms: float


async def startup(environment: BenchEnvironment) -> list[Figure]:
    """Measure commands on a file, without a node."""
    folder = environment.folder
    await (await asyncio.create_subprocess_exec("git", "init", "--quiet", folder)).wait()
    _run(folder, "-m", "vox_mesh.cli", "db", "init")
    numbers = count()

    async def take(*arguments: str) -> Took:
        number = next(numbers)
        return _run(folder, *(each.format(number) for each in arguments))

    sides = {name: partial(take, _script(), *each) for name, (each, _) in _COMMANDS.items()}
    sides[_BARE] = partial(take, "-c", "pass")
    rounds = environment.pace.rounds if environment.pace == QUICK else _ROUNDS
    took = await alternate(sides, rounds)
    return [_figure(name, took[name], took[_BARE]) for name in _COMMANDS]


def _figure(name: str, took: list[Took], bare: list[Took]) -> Figure:
    arguments, most = _COMMANDS[name]
    cpu, bare_cpu = (median(each.cpu_ms for each in side) for side in (took, bare))
    return Figure(
        f"startup-{name}",
        f"`vox-mesh {' '.join(arguments[:2])}` / `python -c pass`",
        "ms",
        [each.wall_ms for each in took],
        [each.wall_ms for each in bare],
        at_most(most),
        notes={"processor time, in ms": cpu, "as a multiple": cpu / bare_cpu},
    )


def _script() -> str:
    """Return the script that an installation puts next to the interpreter."""
    return str(Path(sys.executable).parent / "vox-mesh")


def _run(folder: Path, *arguments: str) -> Took:
    variables = {name: value for name, value in os.environ.items() if name != _NO_BYTECODE}
    began = perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=variables | {"VOX_MESH_ENABLED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    took = Took((perf_counter() - began) * 1e3, (used.ru_utime + used.ru_stime) * 1e3)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, arguments
    return took
