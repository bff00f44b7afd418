"""Messages that a command has claimed, and what it says of them."""

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

AT_A_LOOK: Final = 100
_AGAIN_S: Final = 1.0


class Inbox(NamedTuple):
    """An inbox, and how the command line wants to go through it."""

    agent: str
    roles: tuple[str, ...]
    follow: bool
    limit: int | None
    lease_s: float

    @property
    def names(self) -> list[str]:
        """The addresses that it is for."""
        return inbox_names(self.agent, self.roles)

    async def limited(self, messages: AsyncGenerator[Message, None]) -> AsyncGenerator[Message, None]:
        """These messages, but no more than are wanted."""
        left = self.limit
        async with aclosing(messages):
            while left is None or left > 0:
                try:
                    message = await anext(messages)
                except StopAsyncIteration:
                    return
                yield message
                left = None if left is None else left - 1


def coming(mesh: Mesh, box: Inbox) -> AsyncGenerator[Message, None]:
    """The messages of an inbox, claimed one by one; unless it is followed, until none is left."""
    if box.follow:
        return box.limited(mesh.messages.receive(box.agent, roles=box.roles, lease=box.lease_s, at_once=1))
    return box.limited(_waiting(mesh, box))


async def _waiting(mesh: Mesh, box: Inbox) -> AsyncGenerator[Message, None]:
    while found := await claimed(mesh, box, 1):
        yield found[0]


async def claimed(mesh: Mesh, box: Inbox, limit: int) -> list[Message]:
    """Claim what is there now. Cancelled, it is known what was claimed, so that it is given back."""
    claiming = mesh.messages.poll_inbox_from_db(box.agent, roles=box.roles, limit=limit, lease=box.lease_s)
    return await to_the_end(asyncio.ensure_future(claiming))


async def said(say: Callable[[], Awaitable[object]], patience_s: float) -> None:
    """Say what became of a message; while the database is away again and again, for so long at the most.

    Cancelled, it is said once to the end.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            await to_the_end(asyncio.ensure_future(say()))
            return
        except AWAY:
            if time.monotonic() >= deadline:
                raise
        await asyncio.sleep(_AGAIN_S)
