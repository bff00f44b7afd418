"""Message queries: list and find messages without claiming them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from vox_mesh.errors import BadValue, DatabaseUnavailable, NotKnown, Refused
from vox_mesh.messages.acts import sending_acts, sending_uses
from vox_mesh.messages.agent_signatures import AgentSignatures
from vox_mesh.messages.scripts import json, sql
from vox_mesh.model.messages.records import Message, checked_thread
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.nodes import ask_time
from vox_mesh.oplog.grants.permit import Permit
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.store.script import Outcome, Script, Statement
from vox_mesh.store.store import Store

_NOT_DEAD: Final = "not_dead"
_MAX_POSITION: Final = 2**63 - 1


@dataclass(frozen=True)
class MessageThread:
    """Messages that belong together: how many there are, and how many have not ended."""

    thread_id: str
    messages: int
    open: int
    began_at: str
    last_at: str


class MessageQueries:
    """List and find messages in any state, without claiming them."""

    def __init__(
        self, store: Store, clock: MeshClock, permits: Permits, agent_signatures: AgentSignatures
    ) -> None:
        self._store = store
        self._permits = permits
        self._mesh = store.mesh_id
        self._clock = clock
        self._agent_signatures = agent_signatures

    async def learn_time(self) -> None:
        """Read the time of the mesh, unless it is known; if the database is unreachable, use our own."""
        if not self._clock.is_set:
            with suppress(DatabaseUnavailable):
                await ask_time(self._store, self._clock)

    async def peek(self, names: Sequence[str], *, after: int = 0, limit: int = 100) -> list[Message]:
        """Return the deliverable messages for these names after a position, in the order of storing."""
        return await self._read("peek", json(names), after, self._clock.now_ms, limit)

    async def follow(self, names: Sequence[str], after: int = 0) -> AsyncGenerator[Message, None]:
        """Yield the messages that `peek` returns, each once as it comes, without end, across outages."""
        async for turn in self._store.changes():
            page: list[Message] = []
            with turn.retry_if_unavailable():
                page = await self.peek(names, after=after)
            for message in page:
                after = message.position
                yield message
            if page:
                turn.wake()  # there may be more

    async def listed(
        self,
        *,
        state: str | None = None,
        sender: str | None = None,
        receiver: str | None = None,
        thread: str | None = None,
        before: int | None = None,
        down_to: int = 0,
        limit: int = 100,
    ) -> list[Message]:
        """Return all messages that match, the newest first.

        `before` and `down_to` bound their positions, and so how many messages are looked at.
        """
        before = _MAX_POSITION if before is None else before
        thread = None if thread is None else checked_thread(thread)
        name = "list" if thread is None else "list_of_thread"
        return await self._read(name, state, sender, receiver, thread, before, down_to, limit)

    async def newest_position(self) -> int:
        """Return the position of the message that was stored last, in any mesh of the database."""
        return (await self._store.read(sql("newest"))).value or 0

    async def find(self, beginning: str) -> Message | None:
        """Return the message whose id begins with this text; raise `BadValue` if there are several."""
        found = await self._read("beginning_with", beginning.upper())
        if len(found) > 1 and found[0].message_uuid != beginning.upper():
            raise BadValue(f"message id {beginning} is ambiguous", hint="pass more characters of the id")
        return found[0] if found else None

    async def get(self, beginning: str) -> Message:
        """Return the message whose id begins with this text; raise `NotKnown` if there is none."""
        message = await self.find(beginning) if beginning else None
        if message is None:
            raise NotKnown(f"message {beginning} not found", hint="list messages: `vox-mesh messages list`")
        return message

    async def overdue(self, *, unnotified: bool = False, limit: int = 100) -> list[Message]:
        """Return the messages that should have been acknowledged by now, the longest overdue first.

        With `unnotified`, only those whose senders were not notified yet.
        """
        return await self._read("overdue", self._clock.now_ms, int(unnotified), limit)

    async def threads(self, limit: int = 100) -> list[MessageThread]:
        """Return the threads, the latest first."""
        rows = await self._store.read(sql("threads"), (*self._mesh, limit), fresh=True)
        return [MessageThread(*row) for row in rows]

    async def counts(self) -> dict[str, int]:
        """Return the number of messages by state; a state without messages is not listed, and reads as 0."""
        rows = await self._store.read(sql("counts"), self._mesh, fresh=True)
        return Counter({row["state"]: row["messages"] for row in rows})

    async def count_open(self, limit: int) -> int:
        """Return the number of messages that have not ended, up to a limit, from our copy of the database."""
        return int((await self._store.read(sql("count_open"), (*self._mesh, limit))).value or 0)

    async def retry(self, message_uuid: str) -> None:
        """Redeliver a dead letter as if it had never been tried; raise `NotKnown` if it is not one.

        For the agent that acts, this is sending it.
        """
        values = (*self._mesh, message_uuid)
        message = await self.get(message_uuid)

        def retry(permit: Permit) -> Awaitable[Outcome]:
            guards = permit.using(lambda: sending_uses(message)).guards
            is_dead = Statement(sql("refuse_unless_dead"), values, refusal=_NOT_DEAD)
            return self._store.write(Script(*guards, is_dead, Statement(sql("retry"), values)))

        try:
            await self._permits.attempt(lambda: sending_acts(message.receiver_agent), retry, is_logged=False)
        except Refused as refused:
            if refused.reason != _NOT_DEAD:
                raise
            raise NotKnown(
                f"dead letter {message_uuid} not found", hint="list dead letters: `vox-mesh messages dead`"
            ) from None

    async def _read(self, name: str, *values: Any) -> list[Message]:
        rows = await self._store.read(sql(name), (*self._mesh, *values), fresh=True)
        return await self._agent_signatures.check([Message.read(row[0]) for row in rows])
