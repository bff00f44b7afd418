"""`python -m bench.shared_replica`: what processes of one machine take with replicas of their own, or one.

Several processes watch a number on a server whose database has `--size-mb`, and another one writes it. Each
way is measured in turn, `--rounds` times. It prints one JSON object, with medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any, Final

import orjson

from bench import workload
from bench.programs.subprocess_driver import ProgramProcess, primary, start_program
from tools.homes import MESH
from tools.sqld import Server
from vox_mesh import Store, open_store
from vox_mesh.model.base.backends import ReplicaChoice

_KINDS: Final = (ReplicaChoice.PUSHED, ReplicaChoice.SHARED)
_WRITES: Final = 100
_READ_S: Final = 1.0
_GAP_S: Final = 0.02
_MB: Final = 1e6


async def measure(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure both ways in turn."""
    found: dict[ReplicaChoice, list[dict[str, float]]] = {kind: [] for kind in _KINDS}
    with Server() as server, tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        async with await open_store(MESH.settings(folder / "writer", server)) as writer:
            await workload.fill_pages(writer, round(arguments.size_mb * _MB / workload.PAGE))
            await workload.prepare(writer, settled=False)
            await writer.write(workload.numbered_insert(0))
            numbers = count(1)
            for number in range(arguments.rounds):
                for kind in _KINDS if number % 2 else reversed(_KINDS):
                    nodes = folder / f"{kind}-{number}"
                    found[kind].append(
                        await _round(kind, nodes, arguments.processes, server, writer, numbers)
                    )
    return {kind.value: {key: _median(rounds, key) for key in rounds[0]} for kind, rounds in found.items()}


def _median(rounds: Sequence[dict[str, float]], key: str) -> float:
    return round(statistics.median(each[key] for each in rounds), 3)


async def _round(
    kind: ReplicaChoice, folder: Path, processes: int, server: Server, writer: Store, numbers: Iterator[int]
) -> dict[str, float]:
    async with AsyncExitStack() as running:
        nodes: list[ProgramProcess] = []
        for number in range(processes):
            home = folder / ("home" if kind is ReplicaChoice.SHARED else f"home-{number}")
            program = start_program("programs.watcher", home, "--replica", kind, *primary(server))
            nodes.append(await running.enter_async_context(program))
            await nodes[-1].ready()
        before = await _ask(nodes, "costs 0")
        sent: dict[int, float] = {}
        for _ in range(_WRITES):
            number = next(numbers)
            sent[number] = time.monotonic()
            await writer.write(workload.numbered_insert(number))
            await asyncio.sleep(_GAP_S)
        sightings = await _ask(nodes, f"until {max(sent)}")
        costs = await _ask(nodes, "costs 0")
        (read_us,) = await _ask(nodes[-1:], f"read {_READ_S}")
        disk = sum(each.stat().st_blocks * 512 for each in folder.rglob("*") if each.is_file())  # noqa: ASYNC240
    wakes = [at - sent[n] for seen in sightings for n, at in seen if n in sent]
    spent = [late["cpu_s"] - early["cpu_s"] for early, late in zip(before, costs, strict=True)]
    return {
        "pushed_mb": sum(each["pushed_bytes"] for each in costs) / _MB,
        "pushed_kb_per_write": sum(
            late["pushed_bytes"] - early["pushed_bytes"] for early, late in zip(before, costs, strict=True)
        )
        / _WRITES
        / 1e3,
        "disk_mb": disk / _MB,
        "memory_mb": sum(each["memory_kb"] for each in costs) / 1e3,
        "cpu_ms_per_write": sum(spent) / _WRITES * 1e3,
        "wake_p50_ms": statistics.median(wakes) * 1e3,
        "wake_p95_ms": statistics.quantiles(wakes, n=20)[-1] * 1e3,
        "read_p50_us": read_us,
    }


async def _ask(nodes: Sequence[ProgramProcess], signal: str) -> list[Any]:
    for node in nodes:
        node.send(signal)
    return [await node.report(_READ_S) for node in nodes]


def main() -> None:
    """Measure, and print the result."""
    parser = argparse.ArgumentParser(prog="python -m bench.shared_replica", description=__doc__)
    parser.add_argument("--processes", type=int, default=8, metavar="N", help="nodes (default: 8)")
    parser.add_argument("--size-mb", type=int, default=50, metavar="MB", help="database (default: 50)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds of each (default: 3)")
    parser.add_argument("--folder", type=Path, default=None, help="where replicas lie (default: temporary)")
    print(orjson.dumps(asyncio.run(measure(parser.parse_args())), option=orjson.OPT_INDENT_2).decode())


if __name__ == "__main__":
    main()
