"""Follow the log that the primary pushes, and answer from the applied frames."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Final

from vox_mesh.errors import NoAnswer, SyncRefused
from vox_mesh.store.background import BackgroundFaults
from vox_mesh.store.replica.answering import NEVER, CopyState
from vox_mesh.store.replica.copy import Applied, Copy
from vox_mesh.store.replica.follower import ReplicaFollower
from vox_mesh.store.replica.hellos import PendingHellos
from vox_mesh.store.replica.log import PrimaryLog
from vox_mesh.store.replica.mark import Mark
from vox_mesh.store.replica.read_watermark import ReadWatermark
from vox_mesh.store.replica.replica import NeedsSnapshot, NoSnapshot, Restarted, SessionOver
from vox_mesh.store.replica.wire import Hello
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement
from vox_mesh.store.watch.changes import Changes

_log = logging.getLogger(__name__)

_HELLO_TIMEOUT_S: Final = 2.0
"""The timeout of a hello, and of the arrival of a frame that it reported."""

_SNAPSHOT_RETRY_S: Final = (0.02, 0.25)
"""The first and the longest delay before a snapshot is requested again."""

_SNAPSHOT_TIMEOUT_S: Final = 120.0
"""How long the server may take to create a snapshot; a log of 200 MB takes seconds."""


class PushedReplica(ReplicaFollower):
    """Applies the log as the primary pushes it, and sends a hello periodically to learn where it ends."""

    driver = "pushed"

    def __init__(
        self,
        copy: Copy,
        mark: Mark,
        log: PrimaryLog,
        watermark: ReadWatermark,
        changes: Changes,
        *,
        max_stale_s: float,
        refused: Callable[[SyncRefused], None],
        faults: BackgroundFaults,
    ) -> None:
        super().__init__(mark, watermark, changes, max_stale_s=max_stale_s, refused=refused, faults=faults)
        self._copy = copy
        self._log = log
        self._received_at = NEVER
        self._pending_hellos = PendingHellos()
        self._end = 0
        self._session_id = ""  # of the primary's current run
        self._fetched_before = mark.record.fetched_bytes
        self._awaits_snapshot = False

    @property
    def is_pushed(self) -> bool:
        """Return whether the primary's commits arrive now."""
        return self.is_in_touch and not self._awaits_snapshot

    @property
    def _copy_state(self) -> CopyState:
        copy = self._copy
        return CopyState(copy.log_id, copy.next_frame, max(self._end, copy.next_frame), copy.size)

    @property
    def _received_frames(self) -> int:
        return self._copy.arrived

    @property
    def _has_pending_hello(self) -> bool:
        return bool(self._pending_hellos)

    @property
    def _is_blocked(self) -> bool:
        return self._awaits_snapshot

    @property
    def _is_behind(self) -> bool:
        return self._monotonic() - self._pending_hellos.oldest_at > _HELLO_TIMEOUT_S

    @property
    def _fetched_bytes(self) -> int:
        return self._fetched_before + self._log.fetched_bytes

    def _read_now(self, statement: Statement) -> Rows | None:
        return self._copy.read_now(statement)

    async def _read(self, statement: Statement) -> Rows | None:
        rows = await self._copy.read(statement)
        if self._copy.is_damaged:
            self._refresh_requested.set()  # so that the task notices at once
        return rows

    async def _prepare(self) -> None:
        if not await self._copy.recover() and self._copy.log_id:
            _log.warning("replica file does not match its mark: fetching it again")
            self._copy.is_damaged = True

    # --- following -------------------------------------------------------------------------------

    async def _session(self) -> None:
        asked_at = self._monotonic()
        hello = await self._log.hello(_HELLO_TIMEOUT_S)
        self._session_id = hello.session
        is_same_log = hello.log_id == self._copy.log_id and hello.next_frame >= self._copy.next_frame
        if not is_same_log or self._copy.is_damaged:
            await self._copy.start_over(hello.log_id)
        self._pending_hellos.clear()
        self._expect()
        self._handle_hello(asked_at, self._copy.next_frame, hello)
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
        """Return the frame to request: the next, or the last one again if the log's history must be verified.

        While the primary runs, its log only grows and is compacted. Only a restart can bring back an older
        state of its folder under the same log id.
        """
        first = self._copy.expect(again=self._mark.record.session != self._session_id)
        self._note_verified_history()
        return first

    def _note_verified_history(self) -> None:
        """Record that this run of the primary shares the copy's history, once that is verified."""
        if not self._copy.is_checking and self._mark.record.session != self._session_id:
            self._mark.update(session=self._session_id)

    async def _follow(self) -> None:
        while True:
            try:
                first = self._expect()
                self._settle_hellos()
                async with aclosing(self._log.follow(first)) as chunks:
                    async for frames in chunks:
                        applied = await self._copy.take(frames)
                        self._note_received()
                        if applied:
                            self._note_applied(applied)
                raise NoAnswer("the primary ended the push stream")
            except NeedsSnapshot:
                self._awaits_snapshot = True
                try:
                    await self._take_snapshot()
                finally:
                    self._awaits_snapshot = False
                self._refresh_requested.set()  # to learn soon whether that was all

    async def _take_snapshot(self) -> None:
        """Fetch compacted frames as soon as the server has created a snapshot of them.

        The server compacts right after the commit that fills the log, before it pushes that commit. So even a
        follower at the head needs a snapshot at every compaction, to fetch that one commit.
        """
        first = self._expect()
        pause_s, longest_pause_s = _SNAPSHOT_RETRY_S
        since = self._monotonic()
        while self._monotonic() < since + _SNAPSHOT_TIMEOUT_S:
            for start in (first,) if first else (0, 1):  # a snapshot from frame 0 may be stored as from 1
                with suppress(NoSnapshot):
                    return await self._take_snapshot_from(start)
            if self._monotonic() > since + _HELLO_TIMEOUT_S:
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
                self._note_received()
        if not size_after:
            raise NoAnswer("the snapshot came without its end")
        await self._copy.apply_snapshot(newest + 1, size_after, checksum)
        self._note_received()
        self._note_applied()

    async def _keep_in_touch(self) -> None:
        while True:
            is_requested = await self._wait_for_refresh()
            self._copy.check()
            if self._copy.is_damaged:
                raise Restarted("the file was changed by another process")
            asked_at, held = self._monotonic(), self._copy.next_frame
            if is_requested or self._needs_refresh or self._is_behind:
                self._handle_hello(asked_at, held, await self._log.hello(_HELLO_TIMEOUT_S))

    def _handle_hello(self, asked_at: float, held: int, hello: Hello) -> None:
        """Process a hello that was sent at `asked_at`, when the copy had `held` frames."""
        self._hello_s = self._monotonic() - asked_at
        self._watermark.place(hello.log_id, asked_at)
        if hello.log_id != self._copy.log_id or hello.next_frame < held:
            raise Restarted("the primary has begun another log")
        if hello.session != self._session_id:
            raise SessionOver("the primary was started again")
        if self._is_overdue(asked_at):
            raise NoAnswer("the push stream is stuck")
        if self._is_behind:
            self._fall_behind("commits come in more slowly than the primary makes them")
        self._pending_hellos.add(asked_at, hello.next_frame)
        self._end = hello.next_frame
        self._settle_hellos()

    def _is_overdue(self, now: float) -> bool:
        """Return whether a reported frame is late and nothing else arrives or is being applied."""
        if not self._pending_hellos or self._awaits_snapshot or self._copy.is_changing:
            return False
        return now - max(self._pending_hellos.oldest_at, self._received_at) > _HELLO_TIMEOUT_S

    def note_write(self, asked_at: float | None) -> None:
        """Use the answer to a write as a hello: it reports the last frame. Without one, send a hello."""
        if asked_at is None:
            self._refresh_requested.set()
        elif self.is_in_touch:
            held = self._copy.log_id, self._copy.next_frame
            if self._pending_hellos.add_write(asked_at, self._watermark.latest_position, held):
                self._settle_hellos()

    def _note_received(self) -> None:
        """Record that frames have arrived, even if only a part of a transaction."""
        self._received_at = self._monotonic()
        self._note_verified_history()
        self._settle_hellos()

    def _note_applied(self, applied: Applied = Applied.ANYTHING) -> None:
        """Notify watches of a commit."""
        if self._copy.is_readable:
            self._changes.bump(is_heartbeat=applied is Applied.HEARTBEATS)

    def _settle_hellos(self) -> None:
        """Settle the hellos whose position the copy has reached."""
        if not self._copy.is_checking:
            asked_at = self._pending_hellos.settle(self._copy.next_frame)
            if asked_at != NEVER:
                self._copy.is_readable = True
                self._advance_as_of(asked_at)
        self._progress.bump()

    # --- closing ---------------------------------------------------------------------------------

    async def _discard(self) -> None:
        await self._copy.discard()

    async def _release(self) -> None:
        try:
            await self._log.close()
        finally:
            await self._copy.close()
