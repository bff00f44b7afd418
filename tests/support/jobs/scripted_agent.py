"""An agent of the Agent Client Protocol that does what its prompt says, step by step, as a process.

The prompt is JSON: a list of steps, each an object with one key.
It uses the agent side of the official package.
"""

# ruff: noqa: ASYNC220, ASYNC240, PTH109 - its steps may block

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import acp
from acp.schema import (
    AgentCapabilities,
    Implementation,
    InitializeResponse,
    NewSessionResponse,
    PermissionOption,
    PromptResponse,
    ToolCallUpdate,
    Usage,
)


class ScriptedAgent:
    """Follows a script, and says what came of each step."""

    def __init__(self) -> None:
        self._client: Any = None
        self._usage: Usage | None = None
        self._cancelled = asyncio.Event()
        self._ignores_cancel = False
        self._sessions = 0
        self.can_load = "--load" in sys.argv

    def on_connect(self, conn: Any) -> None:
        """Keep the connection."""
        self._client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        """Say what it can do."""
        return InitializeResponse(
            protocol_version=99 if "--version" in sys.argv else protocol_version,
            agent_capabilities=AgentCapabilities(load_session=self.can_load),
            agent_info=Implementation(name="scripted", version="1.0"),
        )

    async def new_session(self, cwd: str, mcp_servers: Any = None, **_: Any) -> NewSessionResponse:
        """Open a session, and write down which servers it was given."""
        servers = [each.model_dump(by_alias=True) for each in mcp_servers or []]
        if servers:
            Path(cwd, ".servers.json").write_text(json.dumps(servers))
        return NewSessionResponse(session_id="session-1")

    async def load_session(self, cwd: str, session_id: str, **_: Any) -> None:
        """Take up an earlier session."""
        Path(cwd, "loaded").write_text(session_id)

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Stop, unless the script says otherwise."""
        Path("cancelled").touch()
        if not self._ignores_cancel:
            self._cancelled.set()

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> PromptResponse:
        """Do all steps of the prompt, or until it is cancelled."""
        text = prompt[0].text
        if not text.startswith("["):  # a session that goes on
            await self._say(session_id, f"resumed: {text}")
            return PromptResponse(stop_reason="end_turn")
        steps, _end = json.JSONDecoder().raw_decode(text)
        doing = asyncio.create_task(self._follow(session_id, steps))
        stopping = asyncio.create_task(self._cancelled.wait())
        await asyncio.wait({doing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not doing.done():
            doing.cancel()
            return PromptResponse(stop_reason="cancelled", usage=self._usage)
        return PromptResponse(stop_reason=doing.result(), usage=self._usage)

    async def _follow(self, session_id: str, steps: list[dict[str, Any]]) -> Any:
        for step in steps:
            ((name, value),) = step.items()
            if name == "stop":
                return value
            await getattr(self, f"_do_{name}")(session_id, value)
        return "end_turn"

    async def _say(self, session_id: str, text: str) -> None:
        await self._client.session_update(session_id, acp.update_agent_message_text(text))

    async def _do_say(self, session_id: str, text: str) -> None:
        await self._say(session_id, text)

    async def _do_tool(self, session_id: str, title: str) -> None:
        await self._client.session_update(session_id, acp.start_tool_call("call-1", title, kind="edit"))

    async def _do_make(self, session_id: str, files: dict[str, str]) -> None:
        """Write files itself, as an agent with a shell does."""
        for name, text in files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text)

    async def _do_link(self, session_id: str, links: dict[str, str]) -> None:
        for name, target in links.items():
            Path(name).symlink_to(target)

    async def _do_write(self, session_id: str, given: dict[str, str]) -> None:
        for path, text in given.items():
            await self._attempt(
                session_id, self._client.write_text_file(session_id=session_id, path=path, content=text)
            )

    async def _do_read(self, session_id: str, path: str) -> None:
        await self._attempt(session_id, self._client.read_text_file(session_id=session_id, path=path))

    async def _do_terminal(self, session_id: str, command: str) -> None:
        await self._attempt(session_id, self._client.create_terminal(session_id=session_id, command=command))

    async def _attempt(self, session_id: str, call: Any) -> None:
        try:
            answer = await call
        except acp.RequestError as error:
            await self._say(session_id, f"refused: {error}; ")
        else:
            await self._say(session_id, f"done: {getattr(answer, 'content', 'ok')}; ")

    async def _do_ask(self, session_id: str, given: dict[str, Any]) -> None:
        options = [
            PermissionOption(option_id="always", name="Always", kind="allow_always"),
            PermissionOption(option_id="yes", name="Yes", kind="allow_once"),
            PermissionOption(option_id="no", name="No", kind="reject_once"),
        ]
        call = ToolCallUpdate(
            tool_call_id="call-2",
            kind=given.get("kind", "execute"),
            title=given["title"],
            raw_input={"command": given["title"], "cwd": os.getcwd()},
        )
        answer = await self._client.request_permission(session_id=session_id, tool_call=call, options=options)
        outcome = answer.outcome
        await self._say(session_id, f"answer: {getattr(outcome, 'option_id', outcome.outcome)}; ")

    async def _do_usage(self, session_id: str, tokens: list[int]) -> None:
        used, made = tokens
        self._usage = Usage(total_tokens=used + made, input_tokens=used, output_tokens=made)

    async def _do_crash(self, session_id: str, code: int) -> None:
        print("something broke", file=sys.stderr, flush=True)
        os._exit(code)

    async def _do_child(self, session_id: str, path: str) -> None:
        """Start a process that outlives this one unless it is ended, and write down both."""
        child = subprocess.Popen(["sleep", "600"])
        Path(path).write_text(f"{os.getpid()} {child.pid}\n")

    async def _do_hang(self, session_id: str, _: Any) -> None:
        await asyncio.Event().wait()

    async def _do_ignore(self, session_id: str, _: Any) -> None:
        """Ignore cancellations and SIGTERM from now on."""
        self._ignores_cancel = True
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    async def _do_flood(self, session_id: str, megabytes: int) -> None:
        for _ in range(megabytes * 16):
            await self._say(session_id, "x" * 2**16)

    async def _do_noise(self, session_id: str, lines: int) -> None:
        for _ in range(lines):
            print("no message", flush=True)

    async def _do_env(self, session_id: str, names: list[str]) -> None:
        await self._say(session_id, json.dumps({name: os.environ.get(name) for name in names}))

    async def _do_mesh(self, session_id: str, call: list[Any]) -> None:
        """Call a tool of the mesh, through the server that the session was given."""
        from mcp.client import Client  # slow to import
        from mcp.client.stdio import StdioServerParameters

        (server,) = json.loads(Path(".servers.json").read_text())
        variables = {each["name"]: each["value"] for each in server["env"]}
        parameters = StdioServerParameters(command=server["command"], args=server["args"], env=variables)
        async with Client(parameters, cache=None) as client:
            answer = await client.call_tool(*call)
        await self._say(session_id, json.dumps(answer.structured_content))

    async def _do_once(self, session_id: str, path: str) -> None:
        """Hang in the first attempt only: `path` is outside of the work folder."""
        if not Path(path).exists():
            Path(path).touch()
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(acp.run_agent(ScriptedAgent()))  # type: ignore[arg-type]
