"""Help: agents ask each other for it and promise it within a number of beats; outcomes are counted.

A thread's row and the message that belongs to it are written atomically.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue, MeshError, NotHelper, NotKnown, Refused, ThreadClosed
from vox_mesh.messages.claims import is_relayed
from vox_mesh.messages.messages import Messages
from vox_mesh.messages.scripts import json
from vox_mesh.messages.scripts import sql as of_messages
from vox_mesh.model.base.reserved import MESH_AGENT
from vox_mesh.model.documents.documents import short
from vox_mesh.model.messages.records import ROLE, Message
from vox_mesh.model.rhythm.claims import MAX_TASK
from vox_mesh.model.rhythm.promises import (
    MAX_REASON,
    HelpPromise,
    HelpState,
    HelpThread,
    checked_beats,
    thread_of,
    verdict,
)
from vox_mesh.oplog.grants.permit import MESH_PERMIT
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.store.rows import Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement

_log = logging.getLogger(__name__)

REQUEST: Final = "help.request"
PROMISE: Final = "help.promise"
ANSWER: Final = "help.answer"
WITHDRAWN: Final = "help.withdrawn"
EXPIRED: Final = "help.expired"

_SQL: Final = named("help")
_REFUSED: Final = "help_not_now"
_BATCH_SIZE: Final = 500
_MAX_BATCHES: Final = 20
_RETRY_DELAY_MS: Final = 100

AnyThread = Message | HelpThread | str
"""A help thread: any message in it, its record, its id or its address."""


class HelpCounts(NamedTuple):
    """Counts of ended threads by outcome."""

    kept: int
    broken: int
    expired: int
    unanswered: int


class Help:
    """Asks for help and provides it. Any number of nodes may close overdue threads."""

    def __init__(self, context: RhythmContext, messages: Messages) -> None:
        self._context = context
        self._store = context.store
        self._messages = messages

    # --- asking ----------------------------------------------------------------------------------

    async def ask(
        self,
        to: str,
        body: Any,
        *,
        sender: str | None = None,
        within_beats: int | None = None,
        task: str = "",
    ) -> HelpThread:
        """Ask an agent or a role for help. `within_beats` bounds the wait for a promise, by default one bar.

        Without a promise or an answer by then, the thread closes and the request is no longer delivered.
        """
        if within_beats is None:
            within_beats = self._context.policy.bar_len_beats
        checked_beats("within_beats", within_beats)
        _check_text("task", task, MAX_TASK)
        now_ms = self._context.times.now_ms
        ttl = (self._context.timeline.after(now_ms, within_beats) - now_ms) / 1_000

        def insert(request: Message) -> Sequence[Statement]:
            sent = (request.message_uuid, request.sender_agent, task, now_ms, request.expires_ms)
            return (Statement(_SQL["ask"], (*self._context.mesh, *sent)),)

        request = await self._messages.send(
            to, body, sender=sender, msg_type=REQUEST, ttl=ttl, statements=insert
        )
        return HelpThread(
            thread_id=request.message_uuid,
            asker=request.sender_agent,
            task_id=task,
            asked_ms=now_ms,
            closes_ms=request.expires_ms or now_ms,
            asked_of=request.receiver_agent,
        )

    async def wait(self, thread: AnyThread) -> Message:
        """Wait for the answer. Raises `ThreadClosed`, which names the fallback, if there is none.

        The thread's messages are then removed from the asker's inbox, unless they are claimed.
        """
        now = await self._wait_for_end(thread)
        await self._store.write(
            Script(Statement(_SQL["take"], (*self._context.mesh, now.thread_id, now.asker)))
        )
        answer = None if now.answer_id is None else await self._messages.queries.find(now.answer_id)
        if answer is None:
            raise _closed_error(now)
        return answer

    async def _wait_for_end(self, thread: AnyThread) -> HelpThread:
        """Wait for the thread's end; close this thread, and no other, when it is overdue."""
        is_late = False
        while True:
            seen = self._store.change_count
            now = await self.state(thread, fresh=is_late)
            if not now.is_open:
                return now
            now_ms = self._context.times.now_ms
            is_late = now_ms >= now.closes_ms
            if is_late and await self._close(now):
                continue
            with suppress(TimeoutError):
                async with self._context.times.limit(now_ms + _RETRY_DELAY_MS if is_late else now.closes_ms):
                    await self._store.changed(seen)

    async def state(self, thread: AnyThread, *, fresh: bool = False) -> HelpThread:
        """Return the state of a thread; with `fresh`, read from the primary."""
        thread_id = _id_of(thread)
        for asked in (fresh, True):  # the local replica may not have it yet
            rows = await self._store.read(_SQL["thread"], (*self._context.mesh, thread_id), fresh=asked)
            if rows:
                return HelpThread(*rows[0])
        raise NotKnown(f"help thread {thread_id} not found", hint="run `vox-mesh rhythm help list`")

    async def listed(
        self, *, state: HelpState | None = None, before: str | None = None, limit: int = 100
    ) -> list[HelpThread]:
        """Return threads, newest first, optionally in one state and from before the given id."""
        values = (*self._context.mesh, state, before, limit)
        return [HelpThread(*row) for row in await self._store.read(_SQL["listed"], values)]

    async def counts(self, from_ms: int, until_ms: int) -> HelpCounts:
        """Return the counts of threads that ended in a period."""
        rows = await self._store.read(_SQL["counts"], (*self._context.mesh, from_ms, until_ms))
        return HelpCounts(*rows[0])

    # --- helping --------------------------------------------------------------------------------------

    async def promise(
        self,
        message: AnyThread,
        *,
        promise_beats: int,
        fail_after_beats: int | None = None,
        confidence: float = 1.0,
        on_fail: str = "",
        sender: str | None = None,
    ) -> HelpPromise:
        """Promise an answer within `promise_beats`; the asker is notified.

        The thread closes after `fail_after_beats`, by default as many as `promise_beats`. Only one agent
        may promise, and only that agent may answer then. A received request is acknowledged.
        """
        context, helper = self._context, self._helper(message, sender)
        fail_after = promise_beats if fail_after_beats is None else fail_after_beats
        promised = HelpPromise(_id_of(message), promise_beats, confidence, fail_after, on_fail)
        now_ms = context.times.now_ms
        due_ms, closes_ms = (context.timeline.after(now_ms, beats) for beats in (promise_beats, fail_after))
        values = (helper, promise_beats, float(confidence), fail_after, on_fail, due_ms, closes_ms)
        await self._reply(
            message,
            PROMISE,
            promised.document(),
            helper,
            only=(HelpState.ASKED,),
            change=lambda _: ("promise", values),
            ttl=(closes_ms - now_ms) / 1_000,
        )
        return promised

    async def answer(self, thread: AnyThread, body: Any, *, sender: str | None = None) -> Message:
        """Answer the request; a promise is kept if on time, else broken. Raises `ThreadClosed` if closed."""
        helper = self._helper(thread, sender)
        return await self._reply(
            thread,
            ANSWER,
            body,
            helper,
            only=(HelpState.ASKED, HelpState.PROMISED),
            change=lambda answer: ("answer", (helper, answer.message_uuid)),
        )

    async def withdraw(self, thread: AnyThread, *, reason: str = "", sender: str | None = None) -> Message:
        """Withdraw a promise: it counts as broken, and the asker stops waiting."""
        _check_text("reason", reason, MAX_REASON)
        now = await self.state(thread)
        body = {"thread_id": now.address, "reason": reason, "on_fail": now.on_fail}
        helper = self._helper(thread, sender)
        return await self._reply(
            now, WITHDRAWN, body, helper, only=(HelpState.PROMISED,), change=lambda _: ("withdraw", ())
        )

    def _helper(self, thread: AnyThread, sender: str | None) -> str:
        if sender is None and isinstance(thread, Message) and not thread.receiver_agent.startswith(ROLE):
            sender = thread.receiver_agent
        return self._messages.agent_or_default(sender)

    async def _reply(
        self,
        thread: AnyThread,
        msg_type: str,
        body: Any,
        helper: str,
        *,
        only: Sequence[HelpState],
        change: Callable[[Message], tuple[str, Sequence[Value]]],
        ttl: float | None = None,
    ) -> Message:
        """Send a message to the asker and update the thread with it."""
        thread_id = _id_of(thread)
        asker = thread.sender_agent if isinstance(thread, Message) else (await self.state(thread)).asker
        this = (*self._context.mesh, thread_id)

        def statements_for(message: Message) -> Sequence[Statement]:
            name, values = change(message)
            return (
                Statement(_SQL["refuse_unless_open"], (*this, asker, helper, json(only)), refusal=_REFUSED),
                Statement(_SQL[name], (*this, *values)),
                *self._ack_statements(thread),
            )

        try:
            sent = await self._messages.send(
                asker,
                body,
                sender=helper,
                msg_type=msg_type,
                thread=thread_id,
                reply_to=thread_id,
                ttl=ttl,
                traceparent=thread.traceparent if isinstance(thread, Message) else None,
                statements=statements_for,
            )
        except Refused as refused:
            if refused.reason != _REFUSED:
                raise
            raise await self._refusal_error(thread_id, asker, helper, msg_type) from None
        if isinstance(thread, Message):
            self._messages.hand_over(thread)
        return sent

    def _ack_statements(self, thread: AnyThread) -> Sequence[Statement]:
        """Return the statement that acknowledges the request: it needs no redelivery."""
        if not isinstance(thread, Message) or thread.claim_owner is None or is_relayed(thread):
            return ()
        held = {"message_uuid": thread.message_uuid, "claim_owner": thread.claim_owner}
        return (Statement(of_messages("ack"), (json([held]), *self._context.mesh)),)

    async def _refusal_error(self, thread_id: str, asker: str, helper: str, msg_type: str) -> MeshError:
        now = await self.state(thread_id, fresh=True)
        if not now.is_open:
            return _closed_error(now)
        if now.asker != asker:
            return BadValue(f"asker of help thread {thread_id} must be {now.asker}, got {asker}")
        if now.helper == helper and msg_type == PROMISE:
            return NotHelper(
                f"help thread {thread_id} has a promise of {helper} already",
                hint="answer it, or withdraw the promise",
            )
        if now.helper not in (None, helper):
            return NotHelper(
                f"help thread {thread_id} belongs to another helper: {now.helper} promised first",
                hint="leave it to that agent",
            )
        if now.helper is None and msg_type == WITHDRAWN:
            return NotHelper(
                f"help thread {thread_id} has no promise to withdraw", hint="leave it, or promise help"
            )
        return _closed_error(now)

    # --- closing ---------------------------------------------------------------------------------

    async def close_due(self) -> int:
        """Close the overdue threads and notify their askers; return how many were closed here.

        The local replica shows which are due, and the database decides: each is closed by exactly one node.
        """
        closed = 0
        for batch in range(_MAX_BATCHES):
            values = (*self._context.mesh, self._context.times.now_ms, _BATCH_SIZE)
            rows = await self._store.read(_SQL["due"], values, fresh=batch > 0)
            closings = await asyncio.gather(
                *(self._close(HelpThread(*row)) for row in rows), return_exceptions=True
            )
            closed += closings.count(True)
            for failure in closings:
                if isinstance(failure, BaseException):
                    raise failure  # after all others are closed
            if len(rows) < _BATCH_SIZE or True not in closings:
                break
        if closed:
            _log.info("help requests closed without an answer: count=%d", closed)
        return closed

    async def _close(self, thread: HelpThread) -> bool:
        outcome = verdict(thread.due_ms, thread.closes_ms)
        body = {
            "thread_id": thread.address,
            "state": outcome,
            "helper": thread.helper,
            "task_id": thread.task_id,
            "on_fail": thread.on_fail,
        }
        this = (*self._context.mesh, thread.thread_id)
        closing = (
            Statement(_SQL["refuse_unless_due"], (*this, thread.state), refusal=_REFUSED),
            Statement(_SQL["close"], (*this, outcome)),
        )
        try:
            await self._messages.send(
                thread.asker,
                body,
                sender=MESH_AGENT,
                permit=MESH_PERMIT,
                msg_type=EXPIRED,
                thread=thread.thread_id,
                reply_to=thread.thread_id,
                statements=lambda _: closing,
            )
        except Refused as refused:
            if refused.reason != _REFUSED:
                raise
            return False  # another node closed it, or it was promised or answered meanwhile
        return True


def _check_text(name: str, text: str, max_length: int) -> None:
    if len(text) > max_length or not text.isprintable():
        raise BadValue(f"{name} must be at most {max_length} printable characters, got {short(text)}")


def _id_of(thread: AnyThread) -> str:
    if isinstance(thread, Message):
        return thread_of(thread.thread)
    return thread.thread_id if isinstance(thread, HelpThread) else thread_of(thread)


def _closed_error(thread: HelpThread) -> ThreadClosed:
    state = verdict(thread.due_ms, thread.closes_ms) if thread.is_open else HelpState(thread.state)
    return ThreadClosed(
        f"help thread {thread.thread_id} is closed: {_STATE_TEXTS[state]}",
        state=state,
        on_fail=thread.on_fail,
        hint=f"use the fallback {thread.on_fail}"
        if thread.on_fail
        else "continue without help, or ask again",
    )


_STATE_TEXTS: Final = {
    HelpState.KEPT: "it was answered",
    HelpState.BROKEN: "the promise was broken",
    HelpState.EXPIRED: "the promise expired",
    HelpState.UNANSWERED: "no promise or answer in time",
}
