"""The client side of the Agent Client Protocol: files of the work folder, permissions, and what is said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

from acp import RequestError
from acp.schema import (
    AgentMessageChunk,
    AllowedOutcome,
    DeniedOutcome,
    PermissionOption,
    ReadTextFileResponse,
    RequestPermissionResponse,
    TextContentBlock,
    ToolCallStart,
    ToolCallUpdate,
    WriteTextFileResponse,
)

from vox_mesh.jobs.agents.config import AgentConfig, PermissionDecision
from vox_mesh.jobs.agents.confined_files import ConfinedFiles, OutsideFolder
from vox_mesh.jobs.agents.outcome import LastMessage
from vox_mesh.jobs.agents.permissions import Decisions, PermissionRequest, plain_text
from vox_mesh.jobs.agents.transcript import Transcript

_INVALID: Final = -32602
_MAX_TITLE: Final = 200
_WORK: Final = "$WORK"
_ALLOWING: Final = ("allow_once", "allow_always")
_REJECTING: Final = ("reject_once", "reject_always")


class AcpClient:
    """What an agent may ask of its worker. Terminals are not offered."""

    def __init__(
        self,
        config: AgentConfig,
        files: ConfinedFiles,
        decisions: Decisions,
        transcript: Transcript,
        log: Callable[[str], None],
        work: str,
    ) -> None:
        """`work`: the path of the work folder, which differs between attempts."""
        self._config = config
        self._files = files
        self._decisions = decisions
        self._transcript = transcript
        self._log = log
        self._work = work
        self.message = LastMessage()
        self.asked: asyncio.Future[PermissionRequest] = asyncio.get_running_loop().create_future()
        """The request that needs an answer of a person."""

    # --- what the agent says ---------------------------------------------------------------------

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        """Take a piece of a message, or the begin of a tool call; the transcript has everything."""
        if isinstance(update, AgentMessageChunk):
            if isinstance(update.content, TextContentBlock):
                self.message.add(update.content.text)
        elif isinstance(update, ToolCallStart):
            self.message.end()
            self._log(f"tool: {update.kind or 'other'}: {plain_text(update.title, _MAX_TITLE)}")

    # --- permissions -----------------------------------------------------------------------------

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption], **_: Any
    ) -> RequestPermissionResponse:
        """Allow or deny a tool call; one that needs a person's answer is cancelled with the turn."""
        request = self._request(tool_call)
        decision = self._decisions.decide(request, self._config)
        if self.asked.done():  # the turn is being cancelled
            decision = PermissionDecision.ASK
        self._transcript.add("worker", permission=request.title, kind=request.kind, decision=decision.value)
        self._log(f"permission: {decision.value}: {request.kind}: {plain_text(request.title, _MAX_TITLE)}")
        if decision is PermissionDecision.ASK:
            if not self.asked.done():
                self.asked.set_result(request)
            return _CANCELLED
        return _chosen(options, _ALLOWING if decision is PermissionDecision.ALLOW else _REJECTING)

    def _request(self, call: ToolCallUpdate) -> PermissionRequest:
        details = {
            "input": call.raw_input,
            "locations": [each.path for each in call.locations or ()],
        }
        return PermissionRequest(
            kind=call.kind or "other",
            title=(call.title or "").replace(self._work, _WORK),
            details=_replaced(details, self._work),
        )

    # --- files -----------------------------------------------------------------------------------

    async def read_text_file(
        self, session_id: str, path: str, line: int | None = None, limit: int | None = None, **_: Any
    ) -> ReadTextFileResponse:
        """Return a file of the work folder."""
        try:
            text = await asyncio.to_thread(partial(self._files.read, path, line, limit))
        except (OutsideFolder, OSError) as error:
            self._refuse("read", path, error)
        return ReadTextFileResponse(content=text)

    async def write_text_file(
        self, session_id: str, path: str, content: str, **_: Any
    ) -> WriteTextFileResponse:
        """Write a file of the work folder."""
        try:
            await asyncio.to_thread(partial(self._files.write, path, content))
        except (OutsideFolder, OSError) as error:
            self._refuse("write", path, error)
        return WriteTextFileResponse()

    def _refuse(self, act: str, path: str, error: Exception) -> NoReturn:
        self._log(f"refused: {act} {plain_text(path, _MAX_TITLE)}: {error}")
        raise RequestError(_INVALID, f"the path {error}") from None

    # --- terminals -------------------------------------------------------------------------------

    async def create_terminal(self, session_id: str, command: str, **_: Any) -> NoReturn:
        """Refuse a terminal: commands of an agent run in its own processes, which end with it."""
        self._log(f"refused: terminal: {plain_text(command, _MAX_TITLE)}")
        raise RequestError.method_not_found("terminal/create")

    async def terminal_output(self, **_: Any) -> NoReturn:
        """Refuse the output of a terminal, as there is none."""
        raise RequestError.method_not_found("terminal/output")

    async def wait_for_terminal_exit(self, **_: Any) -> NoReturn:
        """Refuse to wait for a terminal, as there is none."""
        raise RequestError.method_not_found("terminal/wait_for_exit")


_CANCELLED: Final = RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))


def _chosen(options: list[PermissionOption], kinds: tuple[str, ...]) -> RequestPermissionResponse:
    """Return the narrowest option of these kinds; without any, the call is cancelled."""
    for kind in kinds:
        for option in options:
            if option.kind == kind:
                outcome = AllowedOutcome(outcome="selected", option_id=option.option_id)
                return RequestPermissionResponse(outcome=outcome)
    return _CANCELLED


def _replaced(value: Any, work: str, depth: int = 32) -> Any:
    """Return a JSON value in which the path of the work folder is the same for all attempts."""
    if isinstance(value, str):
        return value.replace(work, _WORK)
    if depth == 0:
        return "(too deep)"
    if isinstance(value, dict):
        return {str(name): _replaced(each, work, depth - 1) for name, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, work, depth - 1) for each in value]
    return value
