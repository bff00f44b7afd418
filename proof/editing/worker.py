"""An agent that works by the rules: `python -m proof.editing.worker SPEC`.

It locks files over MCP or by its hook, asks the hook before every edit, commits, releases, and writes to
others. The client is the one of the official SDK. It is ordered about by lines on stdin.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import CallToolResult, TextContent

from proof.chaos.protocol import orders, report
from proof.editing.hands import Hands
from proof.editing.spec import EDITING, FILES, OVER, TAKEN_OVER, UP, WOKEN, AgentSpec

_TTL_S: Final = 3
"""Of a lock on a file that is not edited yet: the hook renews that of an edited one."""
_WAIT_S: Final = 5
_TRIES: Final = 20


class Worker:
    """One process of an agent."""

    def __init__(self, spec: AgentSpec, client: Client) -> None:
        self._spec = spec
        self._client = client
        self._hands = Hands(spec)
        self._rng = random.Random(f"{spec.seed} {spec.who} {spec.incarnation}")
        self._is_over = asyncio.Event()
        self._wanted: list[str] = []
        """Files to be taken over from a killed agent."""

    async def run(self) -> None:
        """Work until ordered to end, then read what is left in the inbox, and leave."""
        await self._hands.restore()
        await self._call("brief")
        await self._send(self._rng.choice(self._spec.others), "I am here")
        report(UP)
        async with asyncio.TaskGroup() as group:
            working = group.create_task(self._work())
            async for order in orders():
                match order["do"]:
                    case "take_over":
                        self._wanted.append(order["path"])
                    case "over":
                        self._is_over.set()
                        await working
                        while await self._read_mail():
                            pass
                        report(OVER)
                    case "idle":
                        group.create_task(self._be_idle())
                    case "wake":
                        await self._send(self._spec.others[0], "wake up")
                    case "leave":
                        break
        while await self._read_mail():
            pass
        await self._call("unlock")

    async def _be_idle(self) -> None:
        await self._hands.wait_for_mail()
        report(WOKEN)

    async def _work(self) -> None:
        while not self._is_over.is_set():
            if self._wanted:
                await self._take_over(self._wanted.pop(0))
            elif self._rng.random() < 0.3:
                await self._mail()
            else:
                await self._change(self._rng.choice(FILES))
            await asyncio.sleep(self._rng.uniform(0, 2 * self._spec.rest_s))

    # --- files ---------------------------------------------------------------------------------------

    async def _change(self, path: str) -> bool:
        """Edit a file under its lock and commit it; return whether it was possible."""
        by_tool = self._rng.random() < 0.6
        if by_tool and not await self._lock(path, wait_s=0):
            if self._rng.random() < 0.5:
                await self._send(self._rng.choice(self._spec.others), f"I wait for {path}")
            if self._rng.random() < 0.3:
                return False  # else it asks the hook, which says the same unless the lock has ended since
        for _ in range(self._rng.randint(1, 2)):
            if not await self._hands.ask_hook(path):
                return False
            await self._hands.edit(path, allowed=True, halfway=lambda: report(EDITING))
        if self._rng.random() < 0.3:
            await self._lock(self._rng.choice(FILES), wait_s=0)  # for later; it expires if nothing is edited
        await self._hands.commit(path)
        if self._rng.random() < 0.7:
            await self._call("unlock", keys=[path])
        return True

    async def _take_over(self, path: str) -> None:
        """Edit the file of an agent that is gone, once its lock has ended."""
        for _ in range(_TRIES):
            if await self._lock(path, wait_s=_WAIT_S) and await self._change(path):
                self._hands.recorder.note("taken-over", path=path)
                break
        report(TAKEN_OVER)

    async def _lock(self, path: str, wait_s: float) -> bool:
        with self._hands.recorder.operation("lock", path=path) as record:
            answer, is_refused = await self._call("lock", keys=[path], ttl_s=_TTL_S, wait_s=wait_s)
            if is_refused:
                record.no()
                self._hands.recorder.note("refusal", via="mcp", path=path, text=answer)
            else:
                record.ok(**json.loads(answer))
        return record.is_ok

    # --- messages ------------------------------------------------------------------------------------

    async def _mail(self) -> None:
        if self._rng.random() < 0.5:
            await self._send(self._rng.choice(self._spec.others), "how far are you?")
        else:
            await self._read_mail()

    async def _send(self, to: str, body: str) -> None:
        answer, is_refused = await self._call("send", to=to, body=body)
        assert not is_refused, answer
        for each in json.loads(answer)["sent"]:
            self._hands.recorder.note("sent", id=each["id"], to=each["to"])

    async def _read_mail(self) -> int:
        answer, is_refused = await self._call("inbox")
        assert not is_refused, answer
        ids = [each["id"] for each in json.loads(answer)["messages"]]
        if ids:
            answer, is_refused = await self._call("ack", ids=ids)
            assert not is_refused, answer
        return len(ids)

    async def _call(self, name: str, **arguments: Any) -> tuple[str, bool]:
        result = await self._client.call_tool(name, arguments)
        assert isinstance(result, CallToolResult)
        (content,) = result.content
        assert isinstance(content, TextContent)
        return content.text, result.is_error


@asynccontextmanager
async def open_client(url: str, token: str) -> AsyncIterator[Client]:
    """Connect to the tools of a node, with the token of an agent."""
    async with (
        create_mcp_http_client(headers={"Authorization": f"Bearer {token}"}) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        yield client


async def main() -> None:
    """Run until ordered to leave."""
    spec = AgentSpec.from_arguments()
    async with open_client(spec.url, os.environ["VOX_AGENT_TOKEN"]) as client:
        await Worker(spec, client).run()


if __name__ == "__main__":
    asyncio.run(main())
