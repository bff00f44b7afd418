"""Commands that run others, as tests see them: the wrapper, the command, and a grandchild of its group."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Final

from tools.fork_server import Program
from tools.forked import AsyncProcess
from tools.homes import environment
from vox_mesh import Settings
from vox_mesh.jobs.exec.process_group import members

KEY: Final = "task:build"
PATIENCE_S: Final = 60.0
FAMILY: Final = ("sh", "-c", 'sleep 1000 & echo "$$ $!"; wait')
"""A command that tells its own id and that of a child, and goes on until both are stopped."""

_ROOT: Final = Path(__file__).resolve().parents[3]
_LOOK_S: Final = 0.01


class Run:
    """A wrapper that has been started."""

    def __init__(self, process: asyncio.subprocess.Process | AsyncProcess) -> None:
        self.process = process
        self.command = self.grandchild = self.group = 0

    async def heard(self) -> str:
        """The next line that the command prints."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            return (await self.process.stdout.readline()).decode().strip()

    async def meet(self) -> None:
        """Wait until `FAMILY` runs, and note who belongs to it."""
        self.command, self.grandchild = map(int, (await self.heard()).split())
        self.group = os.getpgid(self.command)
        # The one that leads the group guards it.
        assert members(self.group) == {self.command, self.grandchild, self.group}

    async def ended(self) -> tuple[int, str]:
        """Wait for the wrapper's end; its exit code, and what it said on stderr."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            said = await self.process.stderr.read()
            return await self.process.wait(), said.decode()

    async def gone(self) -> None:
        """Wait until no process of the group is left: they are not ours, so there is nothing to wait on."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if not members(self.group):
                    return
                await asyncio.sleep(_LOOK_S)

    def kill_all(self) -> None:
        """Leave nothing, whatever became of the test."""
        if self.process.returncode is None:
            self.process.kill()
        if self.group and members(self.group):
            os.killpg(self.group, signal.SIGKILL)


def lock_run(
    settings: Settings, *arguments: str, prefix: tuple[str, ...] = (), terminal: int | None = None
) -> AbstractAsyncContextManager[Run]:
    """Start `vox-mesh lock run` with these arguments; with `terminal`, in a session that has it."""
    return command_run(settings, "lock", "run", *arguments, prefix=prefix, terminal=terminal)


@asynccontextmanager
async def command_run(
    settings: Settings, *arguments: str, prefix: tuple[str, ...] = (), terminal: int | None = None
) -> AsyncIterator[Run]:
    """Start `vox-mesh` with these arguments; with `terminal`, in a session that has it."""
    inherited = {**os.environ, "PYTHONPATH": str(_ROOT), "VOX_AGENT_ID": "coder"}
    variables = {**inherited, **environment(settings)}
    process: asyncio.subprocess.Process | AsyncProcess
    if terminal is None:
        process = await AsyncProcess.start(Program(arguments, variables, module="vox_mesh.cli"))
    else:
        process = await asyncio.create_subprocess_exec(
            *(*prefix, sys.executable, "-m", "vox_mesh.cli", *arguments),
            stdin=terminal,
            stdout=terminal,
            stderr=asyncio.subprocess.PIPE,
            env=variables,
            start_new_session=True,
        )
    run = Run(process)
    try:
        yield run
    finally:
        run.kill_all()
        async with asyncio.timeout(PATIENCE_S):  # a client that was left over may have its streams
            await process.communicate()


def stop(send_signal: Callable[[int], None], database: Path) -> None:
    """Stop a process, but not in the middle of a write: no one else could write to the file until it ends."""
    for _ in range(100):
        send_signal(signal.SIGSTOP)
        with closing(sqlite3.connect(database, timeout=0.2, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
            except sqlite3.OperationalError:
                send_signal(signal.SIGCONT)
            else:
                return
    raise AssertionError("it writes all the time")
