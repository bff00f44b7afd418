"""Jobs for programs in processes of their own: what they are to do, and how they tell what became of it.

A program is started as `python -m MODULE JOB`, with the settings in the environment; it reports in JSON lines
on stdout. Closing its stdin asks it to finish and end, or to begin, as its job has it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from vox_mesh import MeshError

_PATIENCE_S: Final = 90.0


@dataclass(frozen=True)
class Job:
    """What a writer is to do. `verb` names one of the program's functions."""

    verb: str
    table: str = ""
    writer: str = ""
    scripts: int = 0
    callers: int = 1
    seed: int = 0
    seconds: float = 0.0
    timeouts: tuple[float, ...] = (_PATIENCE_S,)
    """The deadlines of the callers, in turn."""
    resends: bool = False
    """Whether every second script of unknown outcome is sent again, under its key."""

    @property
    def argument(self) -> str:
        """The job as the program's one argument."""
        return json.dumps(asdict(self))


def report(**facts: Any) -> None:
    """Tell the test."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def stop_asked() -> None:
    """Wait until the test closes our stdin."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        await reader.read()
    finally:
        transport.close()


def do_job(*verbs: Callable[[Job], Awaitable[None]]) -> None:
    """Do the job that the program was started with, by the verb it names, and end as a shell expects it.

    What is logged goes to stderr.
    """
    logging.basicConfig(format="%(levelname)s %(message)s")
    given = json.loads(sys.argv[1])
    job = Job(**given | {"timeouts": tuple(given["timeouts"])})
    (verb,) = (each for each in verbs if each.__name__ == job.verb)

    async def run() -> None:
        await verb(job)

    with suppress(BrokenPipeError):
        try:
            asyncio.run(run())
        except KeyboardInterrupt:
            sys.exit(130)
        except MeshError as error:
            report(refused=type(error).__name__, line=error.line)
            sys.exit(1)
