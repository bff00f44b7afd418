"""Claiming the messages of an inbox, and settling the claims."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, NamedTuple

from vox_mesh.errors import AWAY
from vox_mesh.mesh import Mesh
from vox_mesh.model.messages.records import Message, inbox_names
from vox_mesh.store.engines.thread import to_the_end

DEFAULT_LIMIT: Final = 100
_RETRY_S: Final = 1.0


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


def messages_of(mesh: Mesh, box: Inbox) -> AsyncGenerator[Message, None]:
    """Yield the messages of an inbox, claimed one at a time; without `follow`, until it is empty."""
    if box.follow:
        return box.limited(mesh.messages.receive(box.agent, roles=box.roles, lease=box.lease_s, at_once=1))
    return box.limited(_until_empty(mesh, box))


async def _until_empty(mesh: Mesh, box: Inbox) -> AsyncGenerator[Message, None]:
    while found := await claim(mesh, box, 1):
        yield found[0]


async def claim(mesh: Mesh, box: Inbox, limit: int) -> list[Message]:
    """Claim the messages available now. Cancelled, it still finishes, so that the claims are released."""
    claiming = mesh.messages.poll_inbox_from_db(box.agent, roles=box.roles, limit=limit, lease=box.lease_s)
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
