"""The pushed replica: follows the primary's log as it is written, and answers from what it has applied."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Final

from vox_mesh.errors import DatabaseUnavailable, NoAnswer, ReplicaOff, SyncRefused, Unauthorized
from vox_mesh.store.carrier import backoff_s
from vox_mesh.store.changes import Changes
from vox_mesh.store.replica.copy import Copy
from vox_mesh.store.replica.floor import Floor
from vox_mesh.store.replica.log import NeedsSnapshot, NoSnapshot, PrimaryLog, SessionOver
from vox_mesh.store.replica.mark import Mark
from vox_mesh.store.replica.pages import Incomplete
from vox_mesh.store.replica.replica import Progress, ReplicaStatus, State
from vox_mesh.store.replica.wire import Hello
from vox_mesh.store.script import Statement
from vox_mesh.store.values import Rows

_log = logging.getLogger(__name__)

_HELLO_S: Final = 2.0
_HELLO_TIMEOUT_S: Final = 2.0
_FLOOR_S: Final = 0.05
"""How long a read waits for what was seen before it; then the primary answers."""

_MAX_PROMISES: Final = 64
_NEVER: Final = -float("inf")


class Restarted(Exception):
    """The primary has another log now, or the file is not what it was: all must be fetched again."""


_PASSING: Final = (DatabaseUnavailable, Unauthorized, NoSnapshot, SessionOver, Restarted, Incomplete)


class PushedReplica:
    """One task that keeps the copy up with the primary, and asks from time to time whether it is.

    `as_of` is the moment up to which the copy holds every commit: when the last hello was said whose frame
    has been applied. Nothing is concluded from silence.
    """

    driver: Final = "pushed"

    def __init__(
        self,
        copy: Copy,
        mark: Mark,
        log: PrimaryLog,
        floor: Floor,
        changes: Changes,
        *,
        max_stale_s: float,
        refused: Callable[[SyncRefused], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._copy = copy
        self._mark = mark
        self._log = log
        self._floor = floor
        self._changes = changes
        self._max_stale_s = max_stale_s
        self._hello_s = min(_HELLO_S, max(max_stale_s / 2, _FLOOR_S))
        self._refused = refused
        self._monotonic = monotonic
        self._state = State.CATCHING_UP
        self._error = ""
        self._as_of = _NEVER
        self._heard_at = _NEVER
        self._promises: deque[tuple[float, int]] = deque()  # hellos, and the frames they named
        self._end = 0
        self._progress = Changes()
        self._hello_wanted = asyncio.Event()
        self._task = asyncio.create_task(self._follow_for_ever(), name="vox-mesh-replica")

    @property
    def is_pushed(self) -> bool:
        """Whether the primary's commits come in."""
        return self._state is State.IN_TOUCH

    # --- answering -------------------------------------------------------------------------------

    async def answer(self, statement: Statement) -> Rows | None:
        """Answer a query, no less than this process has seen before; `None`: ask the primary."""
        if self._monotonic() - self._as_of > self._max_stale_s:
            return None
        if not self._meets_floor and not await self._reach_floor():
            return None
        rows = await self._copy.read(statement)
        if rows is not None:
            rows.age_s = self._monotonic() - self._as_of
        elif self._copy.is_damaged:
            self._hello_wanted.set()  # for the task to see it now
        return rows

    @property
    def _meets_floor(self) -> bool:
        return self._floor.is_met_by(self._copy.log_id, self._copy.next_frame, self._as_of)

    async def _reach_floor(self) -> bool:
        """Wait for what has been seen elsewhere, but not for long."""
        if self._state is not State.IN_TOUCH:
            return False
        if self._floor.needs_hello(self._copy.log_id, self._as_of):
            self._hello_wanted.set()
        try:
            async with asyncio.timeout(_FLOOR_S):
                while not self._meets_floor:
                    await self._progress.after(self._progress.count)
        except TimeoutError:
            return False
        return True

    # --- following -------------------------------------------------------------------------------

    async def _follow_for_ever(self) -> None:
        failed = 0
        try:
            usable = await self._copy.recover()
            if not usable and self._copy.log_id:
                _log.warning("the replica is not as it was left; it is fetched again")
                self._copy.is_damaged = True
            while True:
                try:
                    await self._session()
                except _PASSING as fault:
                    failed = 1 if self._state is State.IN_TOUCH else failed + 1
                    self._lose(fault)
                    if failed > 1 or not isinstance(fault, Restarted):
                        await asyncio.sleep(backoff_s(failed, random.random))
        except SyncRefused as error:
            self._turn_off(error)
            self._refused(error)
        except OSError as error:
            self._turn_off(
                ReplicaOff(f"the replica's file can't be written: {error}", hint="reads go to the primary")
            )
            with suppress(OSError):
                await self._copy.discard()
        except Exception as error:
            _log.exception("the replica failed")
            self._turn_off(error)

    async def _session(self) -> None:
        """Follow the primary for as long as it goes well."""
        asked_at = self._monotonic()
        hello = await self._log.hello(_HELLO_TIMEOUT_S)
        if hello.log_id != self._copy.log_id or self._copy.is_damaged:
            await self._copy.start_over(hello.log_id)
        self._promises.clear()
        self._hear(asked_at, hello)
        tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._keep_in_touch())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            try:
                async with aclosing(self._log.follow(self._copy.expect())) as chunks:
                    async for frames in chunks:
                        applied = await self._copy.take(frames)
                        self._received()
                        if applied:
                            self._applied()
                raise NoAnswer("the primary ended the push stream")
            except NeedsSnapshot:
                await self._take_snapshot()

    async def _take_snapshot(self) -> None:
        """Fetch what the log has lost by compaction."""
        first = self._copy.expect()
        try:
            await self._take_snapshot_from(first)
        except NoSnapshot:
            if first:
                raise
            await self._take_snapshot_from(1)  # some servers count a compacted log from 1

    async def _take_snapshot_from(self, first: int) -> None:
        newest = size_after = 0
        async with aclosing(self._log.snapshot(first)) as chunks:
            async for frames in chunks:
                newest = max(newest, frames[0].number)
                size_after = frames[-1].size_after
                await self._copy.take_older(frames)
                self._received()
        if not size_after:
            raise NoAnswer("the snapshot came without its end")
        await self._copy.apply_snapshot(newest + 1, size_after)
        self._applied()

    async def _keep_in_touch(self) -> None:
        """Say hello every two seconds, or as soon as a reader wants to know."""
        while True:
            try:
                async with asyncio.timeout(self._hello_s):
                    await self._hello_wanted.wait()
            except TimeoutError:
                pass
            self._hello_wanted.clear()
            if self._copy.is_damaged:
                raise Restarted("the replica's file was changed by somebody else")
            asked_at = self._monotonic()
            self._hear(asked_at, await self._log.hello(_HELLO_TIMEOUT_S))

    def _hear(self, asked_at: float, hello: Hello) -> None:
        """What a hello tells: which log it is, and how far it went when we asked."""
        self._floor.place(hello.log_id, asked_at)
        if hello.log_id != self._copy.log_id or hello.next_frame < self._copy.next_frame:
            raise Restarted("the primary has begun another log")
        if self._promises and asked_at - max(self._promises[0][0], self._heard_at) > _HELLO_TIMEOUT_S:
            raise NoAnswer("the push stream is stuck")
        if len(self._promises) < _MAX_PROMISES:
            self._promises.append((asked_at, hello.next_frame))
        self._end = hello.next_frame
        self._redeem()

    def _received(self) -> None:
        """Something has come in, if only a part of a transaction."""
        self._heard_at = self._monotonic()
        self._progress.bump()

    def _applied(self) -> None:
        """A commit has come in."""
        self._redeem()
        if self._copy.is_readable:
            self._changes.bump()

    def _redeem(self) -> None:
        """See which hellos the copy has caught up with."""
        as_of = self._as_of
        while self._promises and self._promises[0][1] <= self._copy.next_frame:
            as_of, _ = self._promises.popleft()
        if as_of > self._as_of:
            self._as_of = as_of
            self._copy.is_readable = True
            self._mark.update(as_of_ms=time.time_ns() // 1_000_000, error="")
            if self._state is not State.IN_TOUCH:
                self._state, self._error = State.IN_TOUCH, ""
                self._changes.bump()
        self._progress.bump()

    def _lose(self, fault: Exception) -> None:
        told = str(fault) or type(fault).__name__
        if self._state is not State.OUT_OF_TOUCH:
            _log.warning("the replica is out of touch: %s", told)
            self._state = State.OUT_OF_TOUCH
            self._changes.bump()  # whoever watches is to know
        self._error = told
        self._mark.update(error=told)

    def _turn_off(self, error: Exception) -> None:
        self._state = State.OFF
        self._as_of = _NEVER
        self._error = str(error)
        with suppress(OSError):
            self._mark.update(error=self._error)
        _log.warning("the replica is off, reads go to the primary: %s", error)
        self._progress.bump()
        self._changes.bump()

    # --- how it stands ---------------------------------------------------------------------------

    async def caught_up(self, progress: Progress) -> None:
        """Wait until it holds all that was committed before now; raise if it never will."""
        since = self._monotonic()
        self._hello_wanted.set()
        while self._as_of < since:
            if self._state is State.OFF:
                raise ReplicaOff(f"the replica is off: {self._error}", hint="see `vox-mesh db status`")
            progress(self._copy.arrived, self._end)
            await self._progress.after(self._progress.count)
        progress(self._copy.next_frame, self._copy.next_frame)

    def status(self) -> ReplicaStatus:
        """How it stands."""
        age = self._monotonic() - self._as_of
        return ReplicaStatus(
            driver=self.driver,
            state=self._state,
            frame=self._copy.next_frame - 1,
            lag_frames=max(0, self._end - self._copy.next_frame),
            age_ms=round(age * 1_000) if self._as_of != _NEVER else None,
            bytes=self._copy.size,
            error=self._error,
        )

    async def close(self) -> None:
        """Stop following."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._log.close()
        await self._copy.close()
        self._mark.release()
