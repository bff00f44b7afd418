"""Messages of the Agent Client Protocol over the pipes of a process, bounded in size and number."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import orjson
from acp.schema import SessionNotification
from pydantic import ValidationError

from vox_mesh.jobs.agents.transcript import Transcript

MAX_LINE_BYTES: Final = 4 * 2**20
"""The maximum size of one message of an agent."""

MAX_TOTAL_BYTES: Final = 64 * 2**20
"""The maximum size of all messages of an agent in one attempt."""

_MAX_QUEUED: Final = 64
_MAX_OPEN_REQUESTS: Final = 32
_MAX_INVALID: Final = 100
_UPDATE: Final = "session/update"


class AgentTransport:
    """Moves messages between the connection and the agent. What breaks a bound ends it."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._writer: asyncio.StreamWriter | None = None
        self._queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(_MAX_QUEUED)
        self._partial = b""
        self._total = 0
        self._invalid = 0
        self._open: set[str | int] = set()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_closed = False
        self.fault: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why the agent must be stopped, once it has broken a bound."""

    def connect(self, writer: asyncio.StreamWriter) -> None:
        """Set where messages to the agent go."""
        self._writer = writer

    # --- from the agent --------------------------------------------------------------------------

    async def feed(self, piece: bytes) -> None:
        """Take a piece of the agent's output. It waits while there are too many messages."""
        if self._is_closed or self.fault.done():
            return
        self._total += len(piece)
        if self._total > MAX_TOTAL_BYTES:
            self._fail(f"the agent wrote more than {MAX_TOTAL_BYTES} bytes")
            return
        *lines, self._partial = (self._partial + piece).split(b"\n")
        for line in lines:
            await self._take(line)
        if len(self._partial) > MAX_LINE_BYTES:
            self._fail(f"a message of the agent has more than {MAX_LINE_BYTES} bytes")

    async def _take(self, line: bytes) -> None:
        if not line.strip() or self._is_closed or self.fault.done():
            return
        message = None if len(line) > MAX_LINE_BYTES else _parsed(line)
        if message is None:
            self._invalid += 1
            self._transcript.add("agent", invalid=line[:1_000].decode(errors="replace"))
            if self._invalid > _MAX_INVALID:
                self._fail(f"the agent wrote more than {_MAX_INVALID} lines that are no messages")
            return
        self._transcript.add("agent", message=message)
        if _is_delivered(message):
            await self._queue.put(message)

    async def end(self) -> None:
        """Let the connection know that the agent has ended."""
        if not self._is_closed:
            await self._queue.put(None)

    def _fail(self, why: str) -> None:
        if not self.fault.done():
            self.fault.set_result(why)

    # --- the connection --------------------------------------------------------------------------

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message, or `None` at the end."""
        await self._has_room.wait()
        message = await self._queue.get()
        if message is not None and "method" in message and "id" in message:
            self._open.add(message["id"])
            if len(self._open) >= _MAX_OPEN_REQUESTS:
                self._has_room.clear()
        return message

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message to the agent."""
        if self._is_closed or self._writer is None:
            raise ConnectionError("the agent is not connected")
        if "method" not in message:
            self._open.discard(message["id"])
            self._has_room.set()
        self._transcript.add("worker", message=message)
        self._writer.write(orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))
        await self._writer.drain()

    async def close(self) -> None:
        """End both directions: what the agent still writes is dropped."""
        self._is_closed = True
        self._has_room.set()
        while not self._queue.empty():
            self._queue.get_nowait()


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return a message of JSON-RPC, or `None` if a line is none."""
    try:
        message = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(message, dict) or not isinstance(message.get("method", ""), str):
        return None
    if "id" in message and (type(message["id"]) not in (int, str) or len(str(message["id"])) > 200):
        return None
    is_object = isinstance(message.get("params", {}), dict) and isinstance(message.get("error", {}), dict)
    return message if is_object and ("id" in message or "method" in message) else None


def _is_delivered(message: dict[str, Any]) -> bool:
    """Return whether the connection gets a message; of notifications, only valid updates of a session."""
    if "id" in message:
        return True
    if message["method"] != _UPDATE:
        return False
    try:
        SessionNotification.model_validate(message.get("params"))
    except ValidationError:
        return False
    return True
