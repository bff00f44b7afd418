"""Waits of suspended jobs that an op wakes: for a message, or for anything with a deadline."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import orjson

from vox_mesh.errors import Refused
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.jobs.steps.suspension import WAKE, AwaitedMessage, Wake
from vox_mesh.model.messages.records import Message
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Script, Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_SQL: Final = named("job_waits")
_MAX_BATCH: Final = 100
_PAGE: Final = 20
_CLAIM_MS: Final = 10 * 60_000
"""For how long no other consumer gets a message: until its step is stored."""

_TAKEN: Final = "message_not_free"

Verify = Callable[[Sequence[Message]], Awaitable[list[bool]]]
"""Returns whether each message was signed by the node that it names."""


class FoundMessage(NamedTuple):
    """The message that a step has waited for, or `None`; and the last position that is not believed."""

    message: Message | None
    after_id: int


class JobWaits:
    """Stores what suspended jobs wait for, finds the messages among it, and wakes the jobs."""

    def __init__(self, store: Store, clock: MeshClock, verify: Verify, on_note: Callable[[], None]) -> None:
        """`on_note` is called before a wait is written."""
        self._store = store
        self._mesh = store.mesh_id
        self._clock = clock
        self._verify = verify
        self._on_note = on_note

    # --- waking ----------------------------------------------------------------------------------

    def record(self, job_id: str, wake: Wake) -> list[Statement]:
        """Return the statements that store what a job waits for, together with its suspension."""
        self._on_note()
        rows = orjson.dumps([tuple(row) for row in wake.rows]).decode()
        return [
            Statement(_SQL["forget"], (*self._mesh, job_id)),
            Statement(_SQL["record"], (*self._mesh, job_id, wake.op_id, rows)),
        ]

    async def wake_due(self) -> int:
        """Wake the jobs of which a wait is over, and return how many. Any node may call this."""
        rows = await self._store.read(_SQL["due"], (*self._mesh, self._clock.now_ms, _MAX_BATCH))
        for job_id, wake_op in rows:
            op = Op(WAKE, canonical({"job_id": job_id}))
            forget = Statement(_SQL["forget"], (*self._mesh, job_id))
            await self._store.write(Script(forget, op=op, key=str(wake_op)))
        if rows:
            await self.forget()  # one whose question was answered has its op already
        return len(rows)

    async def forget(self) -> None:
        """Remove the waits of jobs that were woken or have ended."""
        if (await self._store.read(_SQL["is_any_over"], self._mesh)).value:
            await self._store.write(Script(Statement(_SQL["forget_over"], self._mesh)))

    # --- messages --------------------------------------------------------------------------------

    async def claim(self, awaited: AwaitedMessage, claim: str, fence: Statement) -> FoundMessage:
        """Claim the next message that fits and that its sender's node has signed."""
        after_id = awaited.after_id
        while page := await self._page(awaited, claim, after_id):
            for message, is_genuine in zip(page, await self._verify(page), strict=True):
                if is_genuine and message.fault is None:
                    if await self._is_claimed(message, claim, fence):
                        return FoundMessage(message, after_id)
                else:
                    _log.warning("message ignored by a step, not genuine: message=%s", message.message_uuid)
                    after_id = message.position
            if len(page) < _PAGE:
                break
            after_id = max(after_id, page[-1].position)
        return FoundMessage(None, after_id)

    async def _page(self, awaited: AwaitedMessage, claim: str, after_id: int) -> list[Message]:
        name = "to_receiver" if awaited.thread is None else "of_thread"
        values = (*self._mesh, awaited.thread, awaited.msg_type, awaited.receiver, claim, after_id, _PAGE)
        return [Message.read(row[0]) for row in await self._store.read(_SQL[name], values, fresh=True)]

    async def _is_claimed(self, message: Message, claim: str, fence: Statement) -> bool:
        values = (*self._mesh, message.message_uuid, claim)
        script = Script(
            fence,
            Statement(_SQL["claim_message"], (*values, _CLAIM_MS)),
            Statement(_SQL["refuse_unless_claimed"], values, refusal=_TAKEN),
        )
        try:
            await self._store.write(script)
        except Refused as refused:
            if refused.reason != _TAKEN:
                raise
            return False
        return True

    def acknowledge(self, message: Message, claim: str) -> list[Statement]:
        """Return the statements that acknowledge a claimed message, together with the step's result."""
        values = (*self._mesh, message.message_uuid, claim)
        return [
            Statement(_SQL["refuse_unless_claimed"], values, refusal=_TAKEN),
            Statement(_SQL["ack_message"], values),
        ]
