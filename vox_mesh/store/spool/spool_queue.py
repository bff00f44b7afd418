"""Spool appendable writes while the database is unreachable, and replay them later."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from vox_mesh.errors import MeshError, OutcomeUnknown, ScriptFailed
from vox_mesh.store.engines.thread import SerialThread
from vox_mesh.store.script import Script, Verdict
from vox_mesh.store.spool.spool import Spool, SpooledOp, SpoolStatus
from vox_mesh.store.write.in_flight import PendingWrite
from vox_mesh.store.write.retry import backoff_s

_log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 2**20


async def _wait_at_most(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class Submit(Protocol):
    """Sends scripts to the database: the combiner's `submit`."""

    def __call__(
        self, scripts: Sequence[Script], timeout: float, *, is_replay: bool
    ) -> Awaitable[list[Verdict]]:
        """Send the scripts in one batch."""


class SpoolQueue:
    """Stores scripts in the spool and replays them, in order and exactly once, when the database is back.

    While the spool is not empty, new appendable scripts are queued behind its content, to preserve the order.
    """

    def __init__(
        self,
        spool: Spool,
        *,
        timeout: float,
        max_scripts: int = 128,
        wait: Callable[[asyncio.Event, float], Awaitable[None]] = _wait_at_most,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._spool = spool
        self._timeout = timeout
        self._max_scripts = max_scripts
        self._chunk = max_scripts
        """The number of scripts per batch. It is halved while answers come too late."""
        self._wait = wait
        self._chance = chance
        self._disk = SerialThread("vox-mesh-spool")
        self._storing: set[asyncio.Future[None]] = set()
        self._answered = asyncio.Event()
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        if spool.status().depth:
            self._filled.set()
        else:
            self._emptied.set()
        self._replay_task: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is spooled or about to be."""
        return not self._filled.is_set()

    async def status(self) -> SpoolStatus:
        """Return the contents of the spool."""
        return await self._disk.do(self._spool.status)

    async def ops(self, kind: str, limit: int) -> list[SpooledOp]:
        """Return the first spooled ops of a kind, as `Spool.ops` does."""
        return await self._disk.do(lambda: self._spool.ops(kind, limit))

    def take(self, writes: Sequence[PendingWrite]) -> None:
        """Spool the writes in this order, and answer each caller when its scripts are on disk."""
        if self.is_empty:
            _log.warning("database unreachable: appendable writes are spooled")
        self._filled.set()
        self._emptied.clear()
        for write in writes:
            storing = self._disk.do(partial(self._spool.keep, write.scripts))
            self._storing.add(storing)
            storing.add_done_callback(self._storing.discard)
            storing.add_done_callback(partial(_answer_caller, write))

    def nudge(self) -> None:
        """End the pause before the next replay: the database has answered."""
        self._answered.set()

    # --- replaying -------------------------------------------------------------------------------

    def start(self, submit: Submit) -> None:
        """Start replaying in the background."""
        self._replay_task = asyncio.create_task(self._replay_all(submit), name="vox-mesh-replay")

    async def drained(self) -> None:
        """Wait until the spool is empty."""
        await self._emptied.wait()

    async def _replay_all(self, submit: Submit) -> None:
        faults = 0
        while True:
            await self._filled.wait()
            try:
                await self.replay_once(submit)
                faults = 0
            except Exception as error:  # whatever the error, spooled writes must be retried
                faults += 1
                pause = backoff_s(faults, self._chance)
                _log.warning("spool replay failed: error=%s retry_in_s=%.1f", error, pause)
                self._answered.clear()
                await self._wait(self._answered, pause)

    async def replay_once(self, submit: Submit) -> int:
        """Replay the oldest scripts. Return their number."""
        most_bytes = _CHUNK_BYTES * self._chunk // self._max_scripts
        kept = await self._disk.do(lambda: self._spool.first(self._chunk, most_bytes))
        if not kept:
            self._mark_empty_if_idle()
            return 0
        try:
            verdicts = await submit([script for _, script in kept], self._timeout, is_replay=True)
        except OutcomeUnknown:
            self._chunk = max(1, self._chunk // 2)
            raise
        self._chunk = min(self._max_scripts, 2 * self._chunk)
        for verdict in verdicts:
            if isinstance(verdict, MeshError) and not isinstance(verdict, ScriptFailed):
                raise verdict  # it was not tried; scripts that were applied return the same answer again
        refused = [
            (seq, script.key, reason)
            for (seq, script), verdict in zip(kept, verdicts, strict=True)
            if (reason := _refusal_of(script, verdict)) is not None
        ]
        for seq, key, reason in refused:
            _log.error("spooled script refused: seq=%d key=%s reason=%s", seq, key, reason)
        reasons = [(seq, reason) for seq, _, reason in refused]
        await self._disk.do(lambda: self._spool.finish(kept[-1][0], reasons))
        return len(kept)

    def _mark_empty_if_idle(self) -> None:
        if not self._storing:
            self._filled.clear()
            self._emptied.set()
            _log.info("spool replayed and empty")

    async def stop_replaying(self) -> None:
        """Stop replaying; spooled writes stay for the next owner of the slot."""
        if self._replay_task is not None:
            self._replay_task.cancel()
            await asyncio.gather(self._replay_task, return_exceptions=True)

    async def close(self) -> None:
        """Finish spooling and close the file."""
        await self.stop_replaying()
        if self._storing:
            await asyncio.wait(self._storing)  # not `gather`: if cancelled, it would cancel them too
        left = (await self.status()).depth
        if left:
            _log.warning("spool not empty at close: writes=%d; the next owner of the slot replays them", left)
        await self._disk.do(self._spool.close)
        await self._disk.stop()


def _answer_caller(write: PendingWrite, storing: asyncio.Future[None]) -> None:
    error = storing.exception()
    if error is not None and not isinstance(error, MeshError):
        error = MeshError(f"the spool failed: {error}")
    write.settle_spooled(error)


def _refusal_of(script: Script, verdict: Verdict) -> str | None:
    """Return why a script was refused when it was replayed, or `None`."""
    if isinstance(verdict, MeshError):
        return verdict.line
    is_refused = script.shape is not None and script.shape.must_answer and not verdict.rows
    return f"{script.shape.name} had no effect" if script.shape is not None and is_refused else None
