"""The process of an agent: its own group, with pipes to its input and from its output."""

from __future__ import annotations

import asyncio
import os
from asyncio.streams import FlowControlMixin
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vox_mesh.jobs.agents.errors import AgentFailed
from vox_mesh.jobs.exec.output_stream import OutputStream, PipeFailed, make_pipe
from vox_mesh.jobs.exec.policy import ExecPolicy, find_program
from vox_mesh.jobs.exec.process_group import ProcessGroup, Start
from vox_mesh.store.engines.thread import to_the_end

END_GRACE_S: Final = 3.0
"""The seconds between SIGTERM and SIGKILL."""

_TAIL_BYTES: Final = 2_048

Consume = Callable[[bytes], Awaitable[None]]
"""Takes a piece of output; the next one is read when it returns."""


@dataclass(frozen=True)
class AgentLaunch:
    """How an agent is started."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    policy: ExecPolicy
    secrets: Sequence[str] = ()
    """What is removed from its output."""


class AgentProcess:
    """A running agent. When its block ends, all its processes have ended."""

    def __init__(self, group: ProcessGroup, writer: asyncio.StreamWriter) -> None:
        self.group = group
        self.writer = writer
        self._ended: asyncio.Task[int] | None = None
        self._stdout: OutputStream | None = None
        self._tail = b""

    @classmethod
    @asynccontextmanager
    async def running(
        cls, launch: AgentLaunch, consume: Consume, on_group: Callable[[ProcessGroup], None]
    ) -> AsyncIterator[AgentProcess]:
        """Start an agent and pass its output on. Raises `AgentFailed` if it can't be started."""
        group = ProcessGroup(grace_s=END_GRACE_S)
        on_group(group)
        try:
            read_end, write_end = make_pipe()
        except PipeFailed as error:
            raise AgentFailed(str(error)) from None
        with read_end:
            loop = asyncio.get_running_loop()
            transport, protocol = await loop.connect_write_pipe(FlowControlMixin, write_end)
            self = cls(group, asyncio.StreamWriter(transport, protocol, None, loop))
            self._stdout = stdout = OutputStream(consume, launch.secrets)
            stderr = OutputStream(self._keep_tail, launch.secrets)
            try:
                async with stdout.read_while(group) as out, stderr.read_while(group) as err:
                    start = await asyncio.to_thread(_start, launch, read_end.fileno(), out, err)
                    self._ended = asyncio.create_task(group.run(start), name="vox-mesh-agent")
                    try:
                        yield self
                    finally:
                        await to_the_end(asyncio.create_task(self._stop(), name="vox-mesh-agent-end"))
            except PipeFailed as error:
                raise AgentFailed(str(error)) from None
            finally:
                if not transport.is_closing():
                    transport.abort()

    async def ended(self) -> int:
        """Wait until the agent has ended. Return its exit code, negative for a signal."""
        assert self._ended is not None
        try:
            return await asyncio.shield(self._ended)
        except (OSError, ValueError) as error:
            raise AgentFailed(f"the agent can't be run: {error}", hint="check its command") from None

    async def read_rest(self) -> None:
        """Pass on what is left of the output of an agent that has ended."""
        if self._stdout is not None:
            await self._stdout.finish()

    def failure(self, code: int) -> AgentFailed:
        """Return the error for an agent that has ended by itself, with the end of its complaints."""
        said = " ".join(self._tail.decode(errors="replace").split())[-500:]
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return AgentFailed(f"the agent ended with {how}" + (f": {said}" if said else ""))

    async def _stop(self) -> None:
        assert self._ended is not None
        if not self._ended.done():
            self.group.end()
        with suppress(OSError, ValueError):  # it could not be started
            await self._ended

    async def _keep_tail(self, piece: bytes) -> None:
        self._tail = (self._tail + piece)[-_TAIL_BYTES:]


def _start(launch: AgentLaunch, stdin: int, stdout: int, stderr: int) -> Start:
    """Return how the agent is started: as the policy of the worker isolates commands."""
    name, *arguments = launch.command
    program = find_program(name, launch.policy.path, launch.folder)
    if program is None or not os.access(program, os.X_OK):
        raise AgentFailed(
            f"program {name!r} of the agent not found", hint="check its command in the file of agents"
        )
    isolation = launch.policy.isolation
    try:
        wrapped = isolation.wrap(launch.folder, program, arguments)
    except ValueError as error:
        raise AgentFailed(f"folder of agents: {error}", hint="choose another folder") from None
    return Start(
        wrapped or launch.command,
        launch.environment,
        executable=None if wrapped else str(program),
        cwd=launch.folder,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        is_apart=True,
        user=isolation.user,
    )
