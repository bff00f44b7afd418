"""`vox-mesh inbox --exec`: run a command for each message, under the lease of its claim."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final, NamedTuple

from vox_mesh.cli.messages.message_output import records, text_of
from vox_mesh.cli.support.exit_codes import KILLED, ExitCode, shell_exit_code
from vox_mesh.cli.support.output import Record
from vox_mesh.cli.support.session import AgentMesh
from vox_mesh.cli.support.terminal import Terminal
from vox_mesh.errors import AWAY, MeshError, NotHolder
from vox_mesh.jobs.exec.process_group import ProcessGroup, Start
from vox_mesh.mesh import Mesh
from vox_mesh.model.messages.records import Message, inbox_names
from vox_mesh.observability.log_context import message_scope
from vox_mesh.settings.process import deny_inspection
from vox_mesh.store.engines.thread import to_the_end

if TYPE_CHECKING:
    from vox_mesh.settings import Settings

DEFAULT_LIMIT: Final = 100


class Inbox(NamedTuple):
    """An inbox, and the options for reading it."""

    agent: str
    roles: tuple[str, ...]
    follow: bool
    limit: int | None
    lease_s: float

    @property
    def names(self) -> list[str]:
        """The addresses whose messages it has."""
        return inbox_names(self.agent, self.roles)

    async def peek(self, mesh: AgentMesh, after: int, limit: int) -> list[Message]:
        """Return its first messages after a position, without claiming them."""
        if isinstance(mesh, Mesh):
            return await mesh.messages.queries.peek(self.names, after=after, limit=limit)
        return await mesh.messages.peek(self.agent, roles=self.roles, after=after, limit=limit)

    def followed(self, mesh: AgentMesh, after: int) -> AsyncGenerator[Message, None]:
        """Yield its messages after a position as they come, without claiming them."""
        if isinstance(mesh, Mesh):
            return mesh.messages.queries.follow(self.names, after)
        return mesh.messages.follow(self.agent, roles=self.roles, after=after)

    async def limited(self, messages: AsyncGenerator[Message, None]) -> AsyncGenerator[Message, None]:
        """Yield these messages up to the limit."""
        left = self.limit
        async with aclosing(messages):
            while left is None or left > 0:
                try:
                    message = await anext(messages)
                except StopAsyncIteration:
                    return
                yield message
                left = None if left is None else left - 1


def messages_of(mesh: AgentMesh, box: Inbox) -> AsyncGenerator[Message, None]:
    """Yield the messages of an inbox, claimed one at a time; without `follow`, until it is empty."""
    if box.follow:
        # A client claims them one at a time anyway.
        more = {"at_once": 1} if isinstance(mesh, Mesh) else {}
        return box.limited(mesh.messages.receive(box.agent, roles=box.roles, lease=box.lease_s, **more))
    return box.limited(_until_empty(mesh, box))


async def _until_empty(mesh: AgentMesh, box: Inbox) -> AsyncGenerator[Message, None]:
    while found := await claim(mesh, box, 1):
        yield found[0]


async def claim(mesh: AgentMesh, box: Inbox, limit: int) -> list[Message]:
    """Claim the messages available now. Cancelled, it still finishes, so that the claims are released."""
    poll = mesh.messages.poll_inbox_from_db if isinstance(mesh, Mesh) else mesh.messages.claim
    claiming = poll(box.agent, roles=box.roles, limit=limit, lease=box.lease_s)
    return await to_the_end(asyncio.ensure_future(claiming))


async def retry_while_away(settle: Callable[[], Awaitable[object]], patience_s: float) -> None:
    """Settle messages, and retry while the database is away, for at most `patience_s`.

    Cancelled, it finishes the current call.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            await to_the_end(asyncio.ensure_future(settle()))
            return
        except AWAY:
            if time.monotonic() >= deadline:
                raise
        await asyncio.sleep(_RETRY_S)


_log = logging.getLogger(__name__)

_PREFIX: Final = "VOX_MSG_"
_NO_FIELDS: Final = ("payload", "acknowledged")
_RETRY_S: Final = 1.0


class Exec:
    """Runs a shell command for each message of an inbox, one after another."""

    def __init__(self, settings: Settings, box: Inbox, command: str) -> None:
        self._settings = settings
        self._box = box
        self._command = command
        self._failed = 0

    async def run(self) -> int:
        """Handle all messages; return the exit code: 1 if one was not acknowledged."""
        deny_inspection()  # the key of the node is in this process's memory
        async with (
            Mesh.open_command(self._settings) as mesh,
            aclosing(messages_of(mesh, self._box)) as messages,
        ):
            async for message in messages:
                with message_scope(message):
                    self._failed += not await self._handle(mesh, message)
        return ExitCode.NO if self._failed else ExitCode.DONE

    async def _handle(self, mesh: Mesh, message: Message) -> bool:
        """Run the command and settle the message; return whether it was acknowledged.

        Cancelled, the command is stopped. If it had already ended, its exit code still counts.
        """
        cancelled: asyncio.CancelledError | None = None
        running = asyncio.create_task(self._run(mesh, message), name="vox-mesh-command")
        holding = asyncio.create_task(self._until_lost(mesh, message), name="vox-mesh-lease")
        try:
            await asyncio.wait((running, holding), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            cancelled = error
        code = running.result() if running.done() else None
        try:
            await to_the_end(asyncio.ensure_future(_stop(running, holding)))
        except asyncio.CancelledError as error:
            cancelled = error
        is_done = await self._settle(mesh, message, code, is_stopped=cancelled is not None)
        if cancelled is not None:
            raise cancelled
        return is_done

    # --- settling --------------------------------------------------------------------------------

    async def _settle(self, mesh: Mesh, message: Message, code: int | None, *, is_stopped: bool) -> bool:
        """Acknowledge or reject the message; return whether it was acknowledged. No `code`: stopped."""
        patience_s = 0.0 if is_stopped or code is None else self._box.lease_s
        try:
            if code == 0:
                await retry_while_away(lambda: mesh.messages.ack(message, durable=True), patience_s)
            else:
                await retry_while_away(
                    lambda: self._reject(mesh, message, code, is_stopped=is_stopped), patience_s
                )
        except (NotHolder, *AWAY) as error:
            _log.warning(
                "message not settled, its lease expires: message=%s: %s", message.message_uuid, error.line
            )
            return False
        return code == 0

    async def _reject(self, mesh: Mesh, message: Message, code: int | None, *, is_stopped: bool) -> None:
        """Reject the message; it is redelivered at once, unless its command failed."""
        if code is not None:
            reason = f"command exited with {_code_text(code)}"
            await mesh.messages.nack(message, reason=reason)
            _log.warning("message rejected: message=%s reason=%s", message.message_uuid, reason)
        elif is_stopped:
            await mesh.messages.nack(message, reason="command was stopped", retry_in=0)
        else:
            await mesh.messages.nack(message, reason="lease was lost", retry_in=0)

    # --- while it runs ---------------------------------------------------------------------------

    async def _run(self, mesh: Mesh, message: Message) -> int:
        shell = ["/bin/sh", "-c", self._command]
        (record,) = await records(mesh, [message])
        try:
            with TemporaryFile() as body:
                body.write(_stdin_of(message))
                body.seek(0)
                start = Start(shell, _environment(record, self._box.agent), stdin=body.fileno())
                return shell_exit_code(await ProcessGroup(Terminal()).run(start))
        except OSError as error:
            _log.error("command can't be run: %s", error.strerror)
            return ExitCode.NOT_RUNNABLE

    async def _until_lost(self, mesh: Mesh, message: Message) -> None:
        """Renew the lease until it expires or is lost."""
        lease_s = self._box.lease_s
        deadline = time.monotonic() + ((message.claim_until_ms or 0) - mesh.clock.now_ms) / 1_000
        pause = lease_s / 3
        while (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(left, pause))
            sent = time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, deadline - sent)):
                    await mesh.messages.renew(message, lease=lease_s)
            except (TimeoutError, *AWAY):
                pause = min(lease_s / 3, _RETRY_S)
            except MeshError:
                break
            else:
                deadline, pause = sent + lease_s, lease_s / 3
        _log.warning("lease lost, command stopped: message=%s", message.message_uuid)


async def _stop(running: asyncio.Task[int], holding: asyncio.Task[None]) -> None:
    """Stop the command, and wait until it has ended: only then may another process handle the message."""
    for task in (running, holding):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _stdin_of(message: Message) -> bytes:
    text = text_of(message)
    return (text if isinstance(message.body, str) else f"{text}\n").encode()


def _environment(message: Record, agent: str) -> dict[str, str]:
    """Return the command's environment: all fields but the body, which may exceed a variable's size."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_PREFIX)}
    fields = {
        _PREFIX + name.upper(): "" if value is None else str(value)
        for name, value in message.items()
        if name not in _NO_FIELDS
    }
    if message["traceparent"] is not None:
        inherited["TRACEPARENT"] = message["traceparent"]
    return {**inherited, **fields, "VOX_AGENT_ID": agent}


def _code_text(code: int) -> str:
    with suppress(ValueError):
        return f"{code} ({signal.Signals(code - KILLED).name})"
    return str(code)
