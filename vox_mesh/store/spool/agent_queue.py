"""The AgentQueue: while the database is away, what only appends is kept on disk and replayed later."""

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
from vox_mesh.store.script import Script
from vox_mesh.store.spool.spool import Spool, SpoolStatus
from vox_mesh.store.write.in_flight import PendingWrite
from vox_mesh.store.write.request import Verdict
from vox_mesh.store.write.retry import backoff_s

_log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 2**20


async def _wait_at_most(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class Submit(Protocol):
    """How scripts reach the database: the combiner's `submit`."""

    def __call__(
        self, scripts: Sequence[Script], timeout: float, *, is_replay: bool
    ) -> Awaitable[list[Verdict]]:
        """Send the scripts in one request."""


class AgentQueue:
    """Keeps scripts in the spool and replays them, in order and exactly once, when the database is back.

    While anything is kept, new appendable scripts go behind it, so that order holds.
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
        """So many are sent at once: on a slow line fewer and fewer, until their answer comes in time."""
        self._wait = wait
        self._chance = chance
        self._disk = SerialThread("vox-mesh-spool")
        self._keeping: set[asyncio.Future[None]] = set()
        self._answered = asyncio.Event()
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        if spool.status().depth:
            self._filled.set()
        else:
            self._emptied.set()
        self._replaying: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept or about to be."""
        return not self._filled.is_set()

    async def status(self) -> SpoolStatus:
        """What is kept."""
        return await self._disk.do(self._spool.status)

    def take(self, entries: Sequence[PendingWrite]) -> None:
        """Keep the scripts of these callers, in this order, and tell each when its own are on disk."""
        if self.is_empty:
            _log.warning("the database is away: appendable writes are kept in the spool")
        self._filled.set()
        self._emptied.clear()
        for entry in entries:
            keeping = self._disk.do(partial(self._spool.keep, entry.scripts))
            self._keeping.add(keeping)
            keeping.add_done_callback(self._keeping.discard)
            keeping.add_done_callback(partial(_tell, entry))

    def nudge(self) -> None:
        """The database has answered: there is no reason to wait any longer with replaying."""
        self._answered.set()

    # --- replaying -------------------------------------------------------------------------------

    def start(self, submit: Submit) -> None:
        """Begin to replay in the background whatever is kept, now or later."""
        self._replaying = asyncio.create_task(self._replay_all(submit), name="vox-mesh-replay")

    async def drained(self) -> None:
        """Wait until nothing is kept."""
        await self._emptied.wait()

    async def _replay_all(self, submit: Submit) -> None:
        faults = 0
        while True:
            await self._filled.wait()
            try:
                await self.replay_once(submit)
                faults = 0
            except Exception as error:  # whatever it is, what is kept must be tried again
                faults += 1
                pause = backoff_s(faults, self._chance)
                _log.warning("replaying the spool failed: %s; next try in %.1f s", error, pause)
                self._answered.clear()
                await self._wait(self._answered, pause)

    async def replay_once(self, submit: Submit) -> int:
        """Replay the oldest scripts that are kept; how many there were."""
        most_bytes = _CHUNK_BYTES * self._chunk // self._max_scripts
        kept = await self._disk.do(lambda: self._spool.first(self._chunk, most_bytes))
        if not kept:
            self._empty_if_still_empty()
            return 0
        try:
            verdicts = await submit([script for _, script in kept], self._timeout, is_replay=True)
        except OutcomeUnknown:
            self._chunk = max(1, self._chunk // 2)
            raise
        self._chunk = min(self._max_scripts, 2 * self._chunk)
        for verdict in verdicts:
            if isinstance(verdict, MeshError) and not isinstance(verdict, ScriptFailed):
                raise verdict  # it was not tried; those that were answer the same again
        refused = [
            (seq, verdict.line)
            for (seq, _), verdict in zip(kept, verdicts, strict=True)
            if isinstance(verdict, MeshError)
        ]
        for seq, reason in refused:
            _log.error("spooled script %d was refused: %s", seq, reason)
        await self._disk.do(lambda: self._spool.done(kept[-1][0], refused))
        return len(kept)

    def _empty_if_still_empty(self) -> None:
        if not self._keeping:
            self._filled.clear()
            self._emptied.set()
            _log.info("the spool is empty again")

    async def stop_replaying(self) -> None:
        """What is kept stays for the next owner of the slot."""
        if self._replaying is not None:
            self._replaying.cancel()
            await asyncio.gather(self._replaying, return_exceptions=True)

    async def close(self) -> None:
        """Finish what is being kept and close the file."""
        await self.stop_replaying()
        if self._keeping:
            await asyncio.wait(self._keeping)  # not `gather`: cancelled, that would cancel them too
        left = (await self.status()).depth
        if left:
            _log.warning("%d writes stay in the spool: whoever starts here next makes them", left)
        await self._disk.do(self._spool.close)
        await self._disk.stop()


def _tell(entry: PendingWrite, keeping: asyncio.Future[None]) -> None:
    error = keeping.exception()
    if error is not None and not isinstance(error, MeshError):
        error = MeshError(f"the spool failed: {error}")
    entry.settle_spooled(error)
