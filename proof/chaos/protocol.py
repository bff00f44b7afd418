"""What the environment and its node processes share: arguments, signals, and the format of histories."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from proof.history import Event
from vox_mesh import MeshError, run

UP: Final = "up"
OVER: Final = "over"
DRAINED: Final = "drained"
"""Signals of a node process."""

EXIT_REFUSED: Final = 3
"""The exit status of a process that the mesh refused with a reason, or whose environment is gone."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """The arguments of a node process."""

    who: str
    incarnation: int
    seed: int
    nodes: tuple[str, ...]
    folder: str
    """The folder of the history."""
    outside: str
    rest_s: float
    """Between two operations of a workload, on average."""
    workloads: tuple[str, ...] = ()
    """The names of its workloads; empty: the default ones."""

    @property
    def argument(self) -> str:
        """The command-line argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_arguments(cls) -> ProcessSpec:
        """Return that of this process."""
        fields = json.loads(sys.argv[1])
        return cls(**fields | {name: tuple(fields[name]) for name in ("nodes", "workloads")})


def append_events_to(path: Path) -> Callable[[Event], None]:
    """Return a function that appends events to a file; the line survives a crash of the process."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def keep(event: Event) -> None:
        os.write(file, event.line())

    return keep


def report(word: str) -> None:
    """Send a signal to the parent process."""
    os.write(sys.stdout.fileno(), word.encode() + b"\n")


def run_process(main: Callable[[ProcessSpec], Coroutine[Any, Any, None]]) -> None:
    """Run a node process until it is ordered to leave, or until the mesh refuses it with a reason."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        run(main(ProcessSpec.from_arguments()))
    except MeshError as error:
        print(error.line, file=sys.stderr)
        sys.exit(EXIT_REFUSED)


async def orders() -> AsyncIterator[dict[str, Any]]:
    """Yield the orders of the parent process; end this one when it is gone."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        yield json.loads(line)
    os._exit(EXIT_REFUSED)
