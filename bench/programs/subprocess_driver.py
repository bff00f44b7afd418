"""Programs of the benchmark in subprocesses.

Each prints one line when it is ready, and one line of JSON for every signal; it ends when its input does.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import orjson

from tools.homes import FILE, MESH_REPLICA
from tools.sqld import Server
from vox_mesh import Settings

_ROOT: Final = Path(__file__).resolve().parents[2]
_READY_S: Final = 60.0
_GRACE_S: Final = 30.0
_LONGEST_LINE: Final = 2**20


class ProgramProcess:
    """A running program, as the benchmark sees it."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def ready(self, seconds: float = _READY_S) -> None:
        """Wait until it has said that it is ready."""
        async with asyncio.timeout(seconds):
            await self._line()

    def send(self, signal: str) -> None:
        """Give it a signal; it answers with a report."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{signal}\n".encode())

    async def report(self, seconds: float) -> Any:
        """Wait for its report, with a timeout for work that takes about this long."""
        async with asyncio.timeout(seconds + _GRACE_S):
            return orjson.loads(await self._line())

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a benchmark process ended early, with status {await self._process.wait()}")
        return line

    async def end(self) -> None:
        """Close its input, which ends it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(_GRACE_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def start_program(program: str, *arguments: object) -> AsyncIterator[ProgramProcess]:
    """Start a program of the benchmark; it ends with the context."""
    command = [sys.executable, "-m", f"bench.{program}", *map(str, arguments)]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, cwd=_ROOT, limit=_LONGEST_LINE
    )
    started = ProgramProcess(process)
    try:
        yield started
    finally:
        await started.end()


def primary(server: Server | None) -> list[str]:
    """Return the arguments that name the primary of a program, if it has one."""
    return [] if server is None else ["--primary", server.url, server.token]


def add_primary(parser: ArgumentParser) -> None:
    """Take those arguments."""
    parser.add_argument("--primary", nargs=2, metavar=("URL", "TOKEN"))


def node_settings(folder: Path, primary: Sequence[str] | None, **own: Any) -> Settings:
    """Those of a node in the folder: with a replica of the primary, or without one on the file home."""
    if primary is None:
        return FILE.settings(folder, None, **own)
    url, token = primary
    return MESH_REPLICA.settings(
        folder, None, db_url=url, db_token=token, db_driver=MESH_REPLICA.driver, **own
    )
