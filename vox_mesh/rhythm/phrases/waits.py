"""Bounded waits in a phrase, and the escalation when their budget is exhausted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from math import ceil
from typing import Any, Final, TypeVar

from vox_mesh.errors import BadValue, MeshError, ThreadClosed, WaitExhausted
from vox_mesh.model.messages.records import Message
from vox_mesh.model.rhythm.promises import HelpState, HelpThread
from vox_mesh.rhythm.phrases.cutoff import Cutoff, call_until, cancel_and_wait, is_done_by
from vox_mesh.rhythm.phrases.reporting import StatusReporter
from vox_mesh.rhythm.phrases.spec import WRITE_S, PhraseParts, PhraseSpec
from vox_mesh.rhythm.phrases.timer import PhraseTimer

_log = logging.getLogger(__name__)

T = TypeVar("T")

HELP: Final = "help"

_EMITTED_TTL_S: Final = 86_400.0

_falling_back: ContextVar[str] = ContextVar("vox_mesh_falling_back", default="")
"""The phrase whose fallback is running: waits inside it have no fallback of their own."""


class Waits:
    """The waits of one phrase."""

    def __init__(
        self,
        parts: PhraseParts,
        spec: PhraseSpec,
        timer: PhraseTimer,
        reporter: StatusReporter,
        phrase_id: str,
        get_cutoff: Callable[[], Cutoff],
    ) -> None:
        self._parts = parts
        self._spec = spec
        self._timer = timer
        self._reporter = reporter
        self._phrase_id = phrase_id
        self._get_cutoff = get_cutoff
        self._times = parts.context.times
        self._emit_tasks: list[asyncio.Task[None]] = []
        self._escalated: set[str] = set()
        self._fallback: asyncio.Future[bool] | None = None
        self._covered: list[WaitExhausted] = []
        self.has_exhausted = False
        self.fallbacks = spec.fallbacks
        self.result: Any = None
        """The result of the phrase: its fallback's, unless the caller sets another."""

    async def wait(self, awaitable: Awaitable[T], budget: str, wait_for: Sequence[str] = ()) -> T:
        """Wait within the active block; raise `WaitExhausted` when the wait budget is used up."""
        timer, future = self._timer, asyncio.ensure_future(awaitable)
        try:
            cutoff = self._get_cutoff()
            ends_ms = timer.wait_ends_ms(budget, cutoff)
            self._reporter.begin_wait(wait_for, timer.beats_until(ends_ms))
        except BadValue:
            future.cancel()
            raise
        cutoff.hold()
        try:
            is_done = await self._is_done_by(future, budget, ends_ms)
            self._reporter.end_wait(timer.beats_until(cutoff.at_ms))
            if is_done:
                return future.result()
            raise await self._escalate(budget)
        finally:
            cutoff.release()

    async def _is_done_by(self, future: asyncio.Future[Any], budget: str, ends_ms: int) -> bool:
        """Return whether the future is done by then. The time to cancel it is not counted as waiting."""
        try:
            with self._timer.count_wait(budget):
                return await is_done_by(future, self._times, ends_ms)
        finally:
            await cancel_and_wait(future, self._parts.context)

    async def ask_help(self, to: str, body: Any) -> Message:
        """Ask for help and wait for the answer. The wait fails without a promise by the end of the bar."""
        cutoff, context, now_ms = self._get_cutoff(), self._parts.context, self._times.now_ms
        promised_ms = max(context.timeline.window_at(now_ms).end_ms, context.timeline.after(now_ms, 1))
        thread = await self._parts.help.ask(
            to,
            body,
            sender=self._spec.agent,
            within_beats=ceil(self._timer.beats_until(promised_ms)),
            task=self._spec.task,
        )
        cutoff.hold()
        try:
            return await self.wait(self._wait_for_answer(thread, promised_ms), HELP, [thread.address])
        except ThreadClosed as closed:
            raise await self._escalate(HELP, closed.on_fail) from closed
        finally:
            cutoff.release()

    async def _wait_for_answer(self, thread: HelpThread, promised_ms: int) -> Message:
        with suppress(TimeoutError):
            async with self._times.limit(promised_ms):
                return await self._parts.help.wait(thread)
        if (await self._parts.help.state(thread, fresh=True)).state == HelpState.ASKED:
            raise ThreadClosed(
                "help thread closed: no promise by the end of the bar", state=HelpState.UNANSWERED
            )
        return await self._parts.help.wait(thread)

    async def _escalate(self, budget: str, on_fail: str = "") -> MeshError:
        """Run the score's steps for an exhausted wait, and return the error to raise."""
        if self._timer.is_over_budget:
            return self._timer.over_budget_error()
        escalation = self._spec.score.escalation
        fallbacks = [name for name in (on_fail, escalation.fallback) if name]
        given = [name for name in fallbacks if name in self.fallbacks]
        fallback = next(iter(given or fallbacks), None)
        error = WaitExhausted(
            f"wait budget {budget} of {self._spec.task} exhausted: {self._timer.waited[budget]:.3g} beats",
            budget=budget,
            fallback=fallback,
            hint=f"fall back on {fallback}" if fallback else "raise the wait budget, or pass a fallback",
        )
        if self._timer.is_over or _falling_back.get() == self._phrase_id:
            return error
        self.has_exhausted = True
        if budget not in self._escalated:
            self._escalated.add(budget)
            self._reporter.add_remark(f"{budget} exhausted")
            for name in escalation.emits:
                await self._emit(name, budget)
        if given and await self._fall_back_once(given[0]):
            self._covered.append(error)
        return error

    def has_covered(self, error: BaseException) -> bool:
        """Return whether a fallback has covered an error, or all errors of a group."""
        if isinstance(error, BaseExceptionGroup):
            return all(self.has_covered(each) for each in error.exceptions)
        return any(error is each for each in self._covered)

    async def wait_until_emitted(self) -> None:
        """Wait until all emitted events are sent. Each has a timeout, and raises no error."""
        if self._emit_tasks:
            await asyncio.wait(self._emit_tasks)

    async def _emit(self, name: str, budget: str) -> None:
        """Send an event, without prolonging the phrase for it."""
        emit_task = asyncio.create_task(self._send_event(name, budget), name="vox-mesh-phrase-emit")
        self._emit_tasks.append(emit_task)
        await is_done_by(emit_task, self._times, self._timer.ends_ms)

    async def _send_event(self, name: str, budget: str) -> None:
        agent = self._spec.agent
        body = {"agent": agent, "task": self._spec.task, "phrase": self._phrase_id, "budget": budget}
        try:
            await self._parts.messages.send(
                name, body, sender=agent, msg_type=name, ttl=_EMITTED_TTL_S, timeout=WRITE_S
            )
        except MeshError as error:
            _log.warning("event not sent: event=%s task=%s error=%s", name, self._spec.task, error.line)
            self._reporter.add_remark(f"{name} not sent")
        else:
            self._reporter.add_remark(f"{name} sent")

    async def _fall_back_once(self, name: str) -> bool:
        """Run the fallback once per phrase and return whether it succeeded. Other waits share its outcome."""
        while (under_way := self._fallback) is not None:
            await asyncio.wait([under_way])
            if not under_way.cancelled():
                return under_way.result()
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._fallback = done
        try:
            done.set_result(await self._fall_back(name))
        finally:
            if not done.done():  # it was cancelled; another wait may run it again
                self._fallback = None
                done.cancel()
        return done.result()

    async def _fall_back(self, name: str) -> bool:
        """Run the fallback until the end of the phrase at the latest. Return whether it succeeded."""
        ends_ms = self._timer.ends_ms
        self._reporter.begin_fallback(name, self._timer.beats_until(ends_ms))
        within = _falling_back.set(self._phrase_id)
        try:
            with self._timer.count_fallback():
                self.result = await call_until(self.fallbacks[name], self._parts.context, ends_ms)
        except Exception as error:  # the error to raise is the exhausted wait, not this one
            _log.warning("fallback failed: fallback=%s task=%s error=%r", name, self._spec.task, error)
            self._reporter.add_remark(f"fallback {name} failed")
            return False
        finally:
            _falling_back.reset(within)
        self._reporter.add_remark(f"fallback {name}")
        return True
