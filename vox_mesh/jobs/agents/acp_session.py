"""A session of the Agent Client Protocol: one prompt, from the start of the agent to its last message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final

from acp import PROTOCOL_VERSION, RequestError, text_block
from acp.client.connection import ClientSideConnection
from acp.schema import (
    ClientCapabilities,
    EnvVariable,
    FileSystemCapabilities,
    Implementation,
    InitializeResponse,
    McpServerStdio,
    PromptResponse,
)
from pydantic import ValidationError

from vox_mesh.jobs.agents.acp_client import AcpClient
from vox_mesh.jobs.agents.acp_transport import AgentTransport
from vox_mesh.jobs.agents.agent_process import AgentLaunch, AgentProcess
from vox_mesh.jobs.agents.errors import AgentFailed
from vox_mesh.jobs.agents.mesh_access import McpServer
from vox_mesh.jobs.agents.outcome import AgentOutcome, ReportedTokens
from vox_mesh.jobs.agents.permissions import PermissionRequest
from vox_mesh.jobs.exec.process_group import ProcessGroup
from vox_mesh.store.engines.thread import to_the_end

START_S: Final = 120.0
"""The seconds within which an agent must open a session."""

_SUCCESS: Final = "end_turn"
_MAX_SAID: Final = 300


class PermissionNeeded(Exception):
    """The turn was cancelled: a person must answer first."""

    def __init__(self, request: PermissionRequest, session_id: str | None) -> None:
        super().__init__(request.title)
        self.request = request
        self.session_id = session_id


@dataclass
class AcpSession:
    """One attempt of an agent at a prompt."""

    launch: AgentLaunch
    prompt: str
    resume_prompt: str
    """What is said instead if the session of an earlier attempt could be loaded."""
    client: AcpClient
    transport: AgentTransport
    mcp_servers: Sequence[McpServer] = ()
    resumed_id: str | None = None
    """The session of an earlier attempt, if the agent can load it."""
    cancel_grace_s: Callable[[], float] = lambda: 2.0
    """How long the agent may take to cancel its turn before it is ended."""
    on_tokens: Callable[[ReportedTokens], None] = lambda tokens: None
    session_id: str | None = field(default=None, init=False)
    _text: str = field(default="", init=False)
    _agent: dict[str, Any] = field(default_factory=dict, init=False)

    async def run(self, on_group: Callable[[ProcessGroup], None]) -> AgentOutcome:
        """Run the agent to the end of its turn. Raises `AgentFailed` and `PermissionNeeded`."""
        async with AgentProcess.running(self.launch, self.transport.feed, on_group) as process:
            self.transport.connect(process.writer)
            connection = ClientSideConnection(self.client, self.transport)  # type: ignore[arg-type]
            talk = asyncio.create_task(self._talk(connection), name="vox-mesh-acp")
            try:
                return await self._first_end(process, connection, talk)
            except asyncio.CancelledError:
                await self._to_the_end(self._cancel(connection, talk))
                raise
            finally:
                talk.cancel()
                await self._to_the_end(_close(connection, talk))

    async def _first_end(
        self, process: AgentProcess, connection: ClientSideConnection, talk: asyncio.Task[PromptResponse]
    ) -> AgentOutcome:
        """Wait for the end of the turn, or for what ends it before."""
        ended = asyncio.create_task(process.ended(), name="vox-mesh-agent-ended")
        waits: set[asyncio.Future[Any]] = {talk, ended, self.client.asked, self.transport.fault}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if self.client.asked.done():
                await self._cancel(connection, talk)
                raise PermissionNeeded(self.client.asked.result(), self.session_id)
            if self.transport.fault.done():
                raise AgentFailed(self.transport.fault.result(), hint="see its transcript")
            if not talk.done():
                await process.read_rest()  # it may have answered before it ended
                await self.transport.end()
                await asyncio.wait({talk})
            if isinstance(talk.exception(), ConnectionError):
                raise process.failure(await ended)
            return self._outcome(talk.result())
        finally:
            ended.cancel()

    async def _talk(self, connection: ClientSideConnection) -> PromptResponse:
        try:
            async with asyncio.timeout(START_S):
                self.session_id = await self._open(connection)
        except TimeoutError:
            raise AgentFailed(
                f"the agent opened no session within {START_S:.0f} s", hint="run its command by hand"
            ) from None
        answer: PromptResponse = await self._call(
            "session/prompt", connection.prompt(session_id=self.session_id, prompt=[text_block(self._text)])
        )
        return answer

    async def _open(self, connection: ClientSideConnection) -> str:
        begun: InitializeResponse = await self._call(
            "initialize",
            connection.initialize(
                protocol_version=PROTOCOL_VERSION,
                client_capabilities=ClientCapabilities(
                    fs=FileSystemCapabilities(read_text_file=True, write_text_file=True), terminal=False
                ),
                client_info=Implementation(name="vox-mesh", version=version("vox-mesh")),
            ),
        )
        if begun.protocol_version != PROTOCOL_VERSION:
            raise AgentFailed(
                f"protocol version must be {PROTOCOL_VERSION}, got {begun.protocol_version}",
                hint="install a version of the agent that speaks it",
            )
        if begun.agent_info is not None:
            self._agent = {"name": begun.agent_info.name[:100], "version": begun.agent_info.version[:100]}
        cwd = str(self.launch.folder)
        servers: list[Any] = [_mcp_server(each) for each in self.mcp_servers]
        can_load = begun.agent_capabilities is not None and begun.agent_capabilities.load_session
        if self.resumed_id is not None and can_load:
            with suppress(RequestError):  # it has forgotten the session: a new one does the same
                await connection.load_session(cwd=cwd, session_id=self.resumed_id, mcp_servers=servers)
                self.client.message.text, self._text = "", self.resume_prompt
                return self.resumed_id
        self._text = self.prompt
        opened = await self._call("session/new", connection.new_session(cwd=cwd, mcp_servers=servers))
        return str(opened.session_id)

    async def _call(self, method: str, answer: Awaitable[Any]) -> Any:
        try:
            return await answer
        except RequestError as error:
            raise AgentFailed(
                f"the agent refused {method}: {str(error)[:_MAX_SAID]}", hint="see its transcript"
            ) from None
        except ValidationError:
            raise AgentFailed(
                f"the agent's answer to {method} is not valid", hint="see its transcript"
            ) from None

    def _outcome(self, response: PromptResponse) -> AgentOutcome:
        self._report(response)
        if response.stop_reason != _SUCCESS:
            raise AgentFailed(f"the agent stopped: {response.stop_reason}", hint="see its transcript")
        return AgentOutcome(self.client.message.text, response.stop_reason, _tokens(response), self._agent)

    def _report(self, response: PromptResponse) -> None:
        if (tokens := _tokens(response)) is not None:
            self.on_tokens(tokens)

    # --- the end ---------------------------------------------------------------------------------

    async def _cancel(self, connection: ClientSideConnection, talk: asyncio.Task[PromptResponse]) -> None:
        """Ask the agent to cancel its turn, and wait a moment for its last word."""
        if self.session_id is None or talk.done():
            return
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(self.cancel_grace_s()):
                await connection.cancel(session_id=self.session_id)
                await asyncio.wait({talk})
        if talk.done() and not talk.cancelled() and talk.exception() is None:
            self._report(talk.result())

    async def _to_the_end(self, work: Any) -> None:
        await to_the_end(asyncio.create_task(work, name="vox-mesh-acp-end"))


async def _close(connection: ClientSideConnection, talk: asyncio.Task[PromptResponse]) -> None:
    await asyncio.gather(talk, return_exceptions=True)
    with suppress(ConnectionError):
        await connection.close()


def _tokens(response: PromptResponse) -> ReportedTokens | None:
    used = response.usage
    if used is None:
        return None
    cached = (used.cached_read_tokens or 0) + (used.cached_write_tokens or 0)
    return ReportedTokens(used.input_tokens + cached, used.output_tokens + (used.thought_tokens or 0))


def _mcp_server(server: McpServer) -> McpServerStdio:
    return McpServerStdio(
        name="vox-mesh",
        command=server.command,
        args=list(server.arguments),
        env=[EnvVariable(name=name, value=value) for name, value in server.variables.items()],
    )
