"""The pushed replica: follows the primary's log as it is written, and answers from what it has applied."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Final

from vox_mesh.errors import NoAnswer, SyncRefused
from vox_mesh.store.background import BackgroundFaults
from vox_mesh.store.replica.copy import Copy
from vox_mesh.store.replica.floor import ReadWatermark
from vox_mesh.store.replica.following import CopyState, ReplicaFollower
from vox_mesh.store.replica.interruptions import NeedsSnapshot, NoSnapshot, Restarted, SessionOver
from vox_mesh.store.replica.log import PrimaryLog
from vox_mesh.store.replica.mark import Mark
from vox_mesh.store.replica.wire import Hello
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement
from vox_mesh.store.watch.changes import Changes

_log = logging.getLogger(__name__)

_HELLO_S: Final = 2.0
"""How long a hello may stay unanswered, and a frame that it named not come."""

_NOW_AND_THEN_S: Final = 0.5
_SNAPSHOT_LOOK_S: Final = (0.02, 0.25)
"""How long to wait before asking for a snapshot again, at first and at most."""

_SNAPSHOT_S: Final = 120.0
"""How long a snapshot may be in the making: the server takes seconds for a log of 200 MB."""

_MAX_PROMISES: Final = 64
_NEVER: Final = -float("inf")


class PushedReplica(ReplicaFollower):
    """Takes in the log as the primary pushes it, and says hello from time to time to know where it ends."""

    driver = "pushed"

    def __init__(
        self,
        copy: Copy,
        mark: Mark,
        log: PrimaryLog,
        floor: ReadWatermark,
        changes: Changes,
        *,
        max_stale_s: float,
        refused: Callable[[SyncRefused], None],
        faults: BackgroundFaults,
    ) -> None:
        super().__init__(mark, floor, changes, max_stale_s=max_stale_s, refused=refused, faults=faults)
        self._copy = copy
        self._log = log
        self._heard_at = _NEVER
        self._promises: deque[tuple[float, int]] = deque()  # hellos, and the frames they named
        self._wrote_at = _NEVER  # when the last write was sent that counts as a hello
        self._wrote: tuple[str, int] | None = None  # and what its answer named
        self._end = 0
        self._session_id = ""  # of the primary's run that we follow
        self._fetched_before = mark.record.fetched_bytes
        self._awaits_snapshot = False

    @property
    def is_pushed(self) -> bool:
        """Whether the primary's commits come in."""
        return self.is_in_touch and not self._awaits_snapshot

    @property
    def _held(self) -> CopyState:
        copy = self._copy
        return CopyState(copy.log_id, copy.next_frame, max(self._end, copy.next_frame), copy.size)

    @property
    def _arrived(self) -> int:
        return self._copy.arrived

    @property
    def _is_promised(self) -> bool:
        return bool(self._promises)

    @property
    def _is_held_up(self) -> bool:
        return self._awaits_snapshot

    @property
    def _is_behind(self) -> bool:
        return bool(self._promises) and self._monotonic() - self._promises[0][0] > _HELLO_S

    @property
    def _fetched_bytes(self) -> int:
        return self._fetched_before + self._log.fetched_bytes

    def _read_now(self, statement: Statement) -> Rows | None:
        return self._copy.read_now(statement)

    async def _read(self, statement: Statement) -> Rows | None:
        rows = await self._copy.read(statement)
        if self._copy.is_damaged:
            self._asked.set()  # for the task to see it now
        return rows

    async def _prepare(self) -> None:
        if not await self._copy.recover() and self._copy.log_id:
            _log.warning("the replica is not as it was left; it is fetched again")
            self._copy.is_damaged = True

    # --- following -------------------------------------------------------------------------------

    async def _session(self) -> None:
        asked_at = self._monotonic()
        hello = await self._log.hello(_HELLO_S)
        self._session_id = hello.session
        is_ours = hello.log_id == self._copy.log_id and hello.next_frame >= self._copy.next_frame
        if not is_ours or self._copy.is_damaged:
            await self._copy.start_over(hello.log_id)
        self._promises.clear()
        self._expect()
        self._hear(asked_at, self._copy.next_frame, hello)
        tasks = [
            asyncio.create_task(self._follow(), name="vox-mesh-replica-follower"),
            asyncio.create_task(self._keep_in_touch(), name="vox-mesh-replica-touch"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _expect(self) -> int:
        """The number of the frame to ask for: the next, or the last once more if its past is in question.

        A log goes on, and is compacted, for as long as the primary runs. Only where that was started again
        can its folder have been put back to an older state, with the same log id.
        """
        first = self._copy.expect(again=self._mark.record.session != self._session_id)
        self._note_past()
        return first

    def _note_past(self) -> None:
        """Remember that this run of the primary has our past, once that is known."""
        if not self._copy.is_checking and self._mark.record.session != self._session_id:
            self._mark.update(session=self._session_id)

    async def _follow(self) -> None:
        while True:
            try:
                first = self._expect()
                self._redeem()
                async with aclosing(self._log.follow(first)) as chunks:
                    async for frames in chunks:
                        applied = await self._copy.take(frames)
                        self._received()
                        if applied:
                            self._applied()
                raise NoAnswer("the primary ended the push stream")
            except NeedsSnapshot:
                self._awaits_snapshot = True
                try:
                    await self._take_snapshot()
                finally:
                    self._awaits_snapshot = False
                self._asked.set()  # to know soon whether that was all

    async def _take_snapshot(self) -> None:
        """Fetch what the log has lost by compaction, as soon as the server has made a snapshot of it.

        The server compacts right after the commit that fills the log, before that has been pushed. So even a
        follower at the head comes here at every compaction, to fetch that one commit.
        """
        first = self._expect()
        pause_s, longest_pause_s = _SNAPSHOT_LOOK_S
        since = self._monotonic()
        while self._monotonic() < since + _SNAPSHOT_S:
            for start in (first,) if first else (0, 1):  # what began with frame 0 may be kept as from 1
                with suppress(NoSnapshot):
                    return await self._take_snapshot_from(start)
            if self._monotonic() > since + _HELLO_S:
                self._fall_behind("the primary has compacted its log and is making a snapshot of it")
            await asyncio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, longest_pause_s)
        raise NoSnapshot(f"the primary has compacted frame {first} and made no snapshot of it")

    async def _take_snapshot_from(self, first: int) -> None:
        newest = size_after = checksum = 0
        async with aclosing(self._log.snapshot(first)) as chunks:
            async for frames in chunks:
                if frames[0].number > newest:
                    newest, checksum = frames[0].number, frames[0].checksum
                size_after = frames[-1].size_after
                await self._copy.take_older(frames)
                self._received()
        if not size_after:
            raise NoAnswer("the snapshot came without its end")
        await self._copy.apply_snapshot(newest + 1, size_after, checksum)
        self._received()
        self._applied()

    async def _keep_in_touch(self) -> None:
        while True:
            is_asked = await self._wait_to_ask()
            self._copy.check()
            if self._copy.is_damaged:
                raise Restarted("the file was changed by somebody else")
            asked_at, held = self._monotonic(), self._copy.next_frame
            if is_asked or self._is_silent or self._is_behind:
                self._hear(asked_at, held, await self._log.hello(_HELLO_S))

    def _hear(self, asked_at: float, held: int, hello: Hello) -> None:
        """What a hello tells: which log it is, and how far it went when we asked and held so many frames."""
        self._floor.place(hello.log_id, asked_at)
        if hello.log_id != self._copy.log_id or hello.next_frame < held:
            raise Restarted("the primary has begun another log")
        if hello.session != self._session_id:
            raise SessionOver("the primary was started again")
        if self._is_overdue(asked_at):
            raise NoAnswer("the push stream is stuck")
        if self._is_behind:
            self._fall_behind("commits come in more slowly than the primary makes them")
        if len(self._promises) < _MAX_PROMISES:
            self._promises.append((asked_at, hello.next_frame))
        self._end = hello.next_frame
        self._redeem()

    def _is_overdue(self, now: float) -> bool:
        """Whether a frame that was named has not come in its time, and nothing else has, nor is at work."""
        if not self._promises or self._awaits_snapshot or self._copy.is_changing:
            return False
        return now - max(self._promises[0][0], self._heard_at) > _HELLO_S

    def written(self, asked_at: float | None) -> None:
        """What answers a write names the last frame, which is as good as a hello. No answer: time for one."""
        if asked_at is None:
            self._asked.set()
            return
        highest = self._floor.highest
        if highest is None or asked_at < self._wrote_at + _NOW_AND_THEN_S or not self.is_in_touch:
            return
        log_id, frame = highest
        # One that was waited for in vain may be of a server that died with it: not that again.
        is_new = highest != self._wrote or frame < self._copy.next_frame
        if log_id == self._copy.log_id and is_new and len(self._promises) < _MAX_PROMISES:
            self._wrote_at, self._wrote = asked_at, highest
            self._promises.append((asked_at, frame + 1))
            self._redeem()

    def _received(self) -> None:
        """Something has come in, if only a part of a transaction."""
        self._heard_at = self._monotonic()
        self._note_past()
        self._redeem()

    def _applied(self) -> None:
        """A commit has come in."""
        if self._copy.is_readable:
            self._changes.bump()

    def _redeem(self) -> None:
        """See which hellos the copy has caught up with."""
        while not self._copy.is_checking and self._promises and self._promises[0][1] <= self._copy.next_frame:
            asked_at, _ = self._promises.popleft()
            self._copy.is_readable = True
            self._hold_all_until(asked_at)
        self._progress.bump()

    # --- the end ---------------------------------------------------------------------------------

    async def _discard(self) -> None:
        await self._copy.discard()

    async def _release(self) -> None:
        try:
            await self._log.close()
        finally:
            await self._copy.close()
