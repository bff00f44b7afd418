"""Honest work that goes on during an attack, under names that the attacker leaves alone; and its baits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from proof.history import Recorder
from proof.hostile.forgeries import ROUTED
from proof.hostile.values import ATTACKER, FORGED
from proof.hostile.writer import BAIT, GOOD
from vox_mesh import JobContext, MeshError
from vox_mesh.jobs.jobs import Scheduled
from vox_mesh.model.jobs.records import ENDS
from vox_mesh.model.messages.records import Message
from vox_mesh.node import MeshNode

_KINDS: Final = (GOOD, BAIT, ROUTED)
_REST_S: Final = 0.25
_TTL_S: Final = 5.0
_CONCURRENCY: Final = 4
_PREY_S: Final = 3.0
"""How long a bait waits to be changed by the attacker before it is run."""
_OUTPUT: Final = "output"
_AWAITED: Final = "awaited"
"""In the payloads of a bait with an output, and of its successor: the same number."""
_DRAIN_S: Final = 60.0
_BELIEFS_S: Final = 0.5
_SHOWN: Final = 80


class GoodWork:
    """The work of one node: it takes locks, sends and receives messages, schedules and runs jobs."""

    def __init__(
        self, mesh: MeshNode, recorder: Recorder, nodes: tuple[str, ...], rng: random.Random
    ) -> None:
        self._mesh = mesh
        self._recorder = recorder
        self._nodes = nodes
        self._rng = rng
        self._messages: list[Message] = []
        self._jobs: list[tuple[str, Scheduled]] = []

    async def start_worker(self) -> None:
        """Run jobs until the node closes."""
        for kind in _KINDS:
            self._mesh.worker.handles(kind, lease=_TTL_S)(self._handle)
        await self._mesh.worker.start(concurrency=_CONCURRENCY)

    async def _handle(self, context: JobContext) -> Any:
        payload = context.payload if isinstance(context.payload, dict) else {}
        if _AWAITED in payload:
            await self._note_given(context)
        forged = str(payload.get(FORGED, ""))
        if context.job.job_id.startswith(ATTACKER):
            forged = forged or "copied job"
        if FORGED in str(payload) and not forged:
            forged = "changed job"
        self._recorder.note("job.ran", kind=context.job.kind, job=context.job.job_id, forged=forged[:_SHOWN])
        return payload if _OUTPUT in payload else None

    async def _note_given(self, context: JobContext) -> None:
        """Note what a successor is given of its predecessor."""
        try:
            results = await context.results()
        except MeshError as error:  # it has found that the output was changed
            self._recorder.note("stumbled", where="results", error=error.line)
        else:
            for result in results.values():
                is_own = isinstance(result, dict) and result.get(_OUTPUT) == context.payload[_AWAITED]
                self._recorder.note("output.given", job=context.job.job_id, forged=not is_own)

    # --- doing ---------------------------------------------------------------------------------------

    async def run(self, over: asyncio.Event) -> None:
        """Do one thing after another, until it is over."""
        ways: dict[str, Callable[[int], Awaitable[Any]]] = {
            "lock": self._lock,
            "message": self._message,
            "job": self._job,
            "routed": self._routed,
            "prey": self._prey,
        }
        number = 0
        while not over.is_set():
            for name, do in ways.items():
                number += 1
                with self._recorder.operation(f"good.{name}", number=number) as record:
                    await do(number)
                    record.ok()
            await asyncio.sleep(_REST_S * 2 * self._rng.random())

    async def _lock(self, number: int) -> None:
        key = f"{GOOD}/{number % 7}"
        lock = await self._mesh.locks.acquire(key, agent=f"{GOOD}-agent", ttl=_TTL_S, wait=_TTL_S)
        await self._mesh.locks.release(lock)

    async def _message(self, number: int) -> None:
        to = f"{GOOD}-{self._rng.choice(self._nodes)}"
        self._messages.append(await self._mesh.messages.send(to, {"number": number}, sender=self._own))

    async def _job(self, number: int) -> None:
        self._jobs.append((GOOD, await self._mesh.jobs.schedule(GOOD, {"number": number, "by": self._own})))

    async def _routed(self, number: int) -> None:
        if number % 4 == 0:
            scheduled = await self._mesh.jobs.schedule(ROUTED, {"number": number, "by": self._own})
            self._jobs.append((ROUTED, scheduled))

    async def _prey(self, number: int) -> None:
        """Send and schedule what the attacker may change before it is received, or run."""
        if number % 3 == 0:
            await self._mesh.messages.send(BAIT, {"prey": number}, sender=self._own)
            later = datetime.now(UTC) + timedelta(seconds=_PREY_S)
            await self._mesh.jobs.schedule(BAIT, {"prey": number, "by": self._own}, run_at=later)
            first = await self._mesh.jobs.schedule(BAIT, {_OUTPUT: number, "by": self._own})
            await self._mesh.jobs.schedule(BAIT, {_AWAITED: number}, after=[first], run_at=later)

    @property
    def _own(self) -> str:
        return f"{GOOD}-{self._recorder.who}"

    # --- receiving and looking -----------------------------------------------------------------------

    async def receive(self, agent: str) -> None:
        """Receive and acknowledge the messages of an inbox, until cancelled."""
        while True:
            try:
                async with aclosing(self._mesh.messages.receive(agent)) as messages:
                    async for message in messages:
                        self._note_received(message)
                        await self._mesh.messages.ack(message)
            except MeshError as error:
                self._recorder.note("stumbled", where="receive", error=error.line)
                await asyncio.sleep(_REST_S)

    def _note_received(self, message: Message) -> None:
        forged = ""
        if FORGED in message.payload:
            body = message.body
            forged = str(body.get(FORGED, "") if isinstance(body, dict) else "") or "changed message"
        if message.message_uuid.startswith(ATTACKER):
            forged = forged or "copied message"
        self._recorder.note("message.received", inbox=message.receiver_agent, forged=forged[:_SHOWN])

    async def look(self) -> None:
        """Note whom this node takes for the owner and the coordinator, and the routes, until cancelled."""
        known: dict[str, Any] = {}
        while True:
            try:
                owner, coordinator = await self._mesh.roles.owner(), await self._mesh.roles.coordinator()
                routes = await self._mesh.roles.routes()
            except MeshError as error:
                self._recorder.note("stumbled", where="look", error=error.line)
            else:
                believed: dict[str, Any] = {"owner": owner and owner.node_id, "routes": routes}
                believed["coordinator"] = coordinator and coordinator.node_id
                if believed != known:
                    known = believed
                    self._recorder.note("believed", **believed)
            await asyncio.sleep(_BELIEFS_S)

    # --- the end -------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Wait until everything that was sent and scheduled has been received and run."""
        until = asyncio.get_running_loop().time() + _DRAIN_S
        for message in self._messages:
            is_acked = await self._is(until, partial(self._mesh.messages.wait_for_ack, message))
            self._recorder.note("good.end", kind="message", done=is_acked)
        for kind, job in self._jobs:
            is_ended = await self._is(until, partial(self._has_ended, job))
            self._recorder.note("good.end", kind=kind, done=is_ended)

    async def _has_ended(self, job: Scheduled, left: float) -> bool:
        return (await self._mesh.jobs.wait(job.job_id, timeout=left)).state in ENDS

    async def _is(self, until: float, ask: Callable[[float], Awaitable[bool]]) -> bool:
        left = max(0.1, until - asyncio.get_running_loop().time())
        try:
            return await ask(left)
        except (MeshError, TimeoutError) as error:
            self._recorder.note("stumbled", where="drain", error=str(error)[:200])
            return False
