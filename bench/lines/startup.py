"""Lines on the start of commands, each as a multiple of an interpreter that does nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
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


_SERVED: Final = ("lock", "guard", "send", "nodes")
_NEXT_TO_NODE: Final = "next-to-a-node"
_MOST_NEXT_TO_NODE: Final = 6.0
_PATIENCE_S: Final = 60.0
_NUMBERS: Final = count()
"""Of the locks, each of which is acquired once."""


class Took(NamedTuple):
    """What one run took, in milliseconds: on the clock, and of the processors for this process alone."""

    wall_ms: float
    cpu_ms: float


async def startup(environment: BenchEnvironment) -> list[Figure]:
    """Measure commands on a file, without a node and next to one."""
    folder = environment.folder
    await (await asyncio.create_subprocess_exec("git", "init", "--quiet", folder)).wait()
    _run(folder, "-m", "vox_mesh.cli", "db", "init")
    alone = await _measure(environment, _COMMANDS)
    figures = [_figure(name, "", most, alone) for name, (_, most) in _COMMANDS.items()]
    async with _node(folder):
        served = await _measure(environment, {name: _COMMANDS[name] for name in _SERVED})
    return figures + [_figure(name, _NEXT_TO_NODE, _MOST_NEXT_TO_NODE, served) for name in _SERVED]


@asynccontextmanager
async def _node(folder: Path) -> AsyncIterator[None]:
    """Run a node in the folder, with a command server that is ready."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, _script(), "up", "--no-worker"),
        cwd=folder,
        env=_variables(),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(_PATIENCE_S):
            while b"command server ready" not in (line := await process.stderr.readline()):
                assert line, "the node has ended"
        draining = asyncio.create_task(process.stderr.read())
        yield
        process.terminate()
        await draining
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _measure(
    environment: BenchEnvironment, commands: Mapping[str, tuple[tuple[str, ...], float]]
) -> dict[str, list[Took]]:
    """Run each command in turn, and an interpreter that does nothing."""
    folder, numbers = environment.folder, _NUMBERS

    async def take(*arguments: str) -> Took:
        number = next(numbers)
        return _run(folder, *(each.format(number) for each in arguments))

    sides = {name: partial(take, _script(), *each) for name, (each, _) in commands.items()}
    sides[_BARE] = partial(take, "-c", "pass")
    rounds = environment.pace.rounds if environment.pace == QUICK else _ROUNDS
    return await alternate(sides, rounds)


def _figure(name: str, place: str, most: float, measured: Mapping[str, list[Took]]) -> Figure:
    arguments, _ = _COMMANDS[name]
    took, bare = measured[name], measured[_BARE]
    cpu, bare_cpu = (median(each.cpu_ms for each in side) for side in (took, bare))
    where = f", {place.replace('-', ' ')}" if place else ""
    return Figure(
        "-".join(filter(None, ("startup", name, place))),
        f"`vox-mesh {' '.join(arguments[:2])}`{where} / `python -c pass`",
        "ms",
        [each.wall_ms for each in took],
        [each.wall_ms for each in bare],
        at_most(most),
        notes={"processor time, in ms": cpu, "as a multiple": cpu / bare_cpu},
    )


def _script() -> str:
    """Return the script that an installation puts next to the interpreter."""
    return str(Path(sys.executable).parent / "vox-mesh")


def _variables() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != _NO_BYTECODE}
    return kept | {"VOX_MESH_ENABLED": "1"}


def _run(folder: Path, *arguments: str) -> Took:
    began = perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=_variables(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    took = Took((perf_counter() - began) * 1e3, (used.ru_utime + used.ru_stime) * 1e3)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, arguments
    return took
