"""Answer from a copy that another process of this machine keeps up to date."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from vox_mesh.errors import MeshError, Unauthorized
from vox_mesh.store.background import BackgroundFaults
from vox_mesh.store.files import open_private
from vox_mesh.store.replica.answering import NEVER, REFRESH_INTERVAL_S, AnsweringReplica, CopyState
from vox_mesh.store.replica.hellos import PendingHellos
from vox_mesh.store.replica.log import PrimaryLog
from vox_mesh.store.replica.read_watermark import ReadWatermark
from vox_mesh.store.replica.replica import ReplicaState, ReplicaStatus
from vox_mesh.store.replica.shared.published import Published, read_published, state_of
from vox_mesh.store.replica.shared.shared_copy import SharedCopy
from vox_mesh.store.replica.shared.shared_follower import DRIVER
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement
from vox_mesh.store.watch.changes import Changes
from vox_mesh.store.watch.file_events import Inotify, NoEvents
from vox_mesh.store.write.retry import backoff_s

_log = logging.getLogger(__name__)

_HELLO_TIMEOUT_S: Final = 2.0
_CHECK_S: Final = 0.5
"""The interval at which a reader looks for a follower that has gone, besides the event of that."""

_FIRST_RETRY_S: Final = 0.002
"""The kernel releases the lock of a process that has ended shortly after it closes its files."""

_SILENT_S: Final = 3 * REFRESH_INTERVAL_S + _HELLO_TIMEOUT_S
"""A follower in touch reports more often than this."""


class SharedReader(AnsweringReplica):
    """Reads the copy, learns of commits from its follower, and takes over when that is gone.

    It judges by itself how fresh the copy is: from what the follower reports, from the answers to its own
    writes, and from hellos of its own where those are needed.
    """

    driver = DRIVER

    def __init__(
        self,
        path: Path,
        host: str,
        log: PrimaryLog,
        watermark: ReadWatermark,
        changes: Changes,
        *,
        max_stale_s: float,
        take_over: Callable[[], bool],
        faults: BackgroundFaults,
    ) -> None:
        """`take_over` has this process follow the primary; it returns whether no other process does."""
        super().__init__(watermark, changes, max_stale_s)
        self._path = path
        self._host = host
        self._log = log
        self._take_over = take_over
        self._faults = faults
        self._copy = SharedCopy(path)
        self._published: Published | None = None
        self._pending_hellos = PendingHellos()
        self._tasks = [
            asyncio.create_task(faults.keep_running("replica", self._watch), name="vox-mesh-replica-reader"),
            asyncio.create_task(faults.keep_running("hello", self._ask), name="vox-mesh-replica-touch"),
        ]

    # --- answering -------------------------------------------------------------------------------

    @property
    def is_pushed(self) -> bool:
        """Return whether the primary's commits arrive now."""
        return self.is_in_touch and self._published is not None and self._published.is_pushed

    @property
    def _copy_state(self) -> CopyState:
        seen = self._published
        if seen is None:
            return CopyState("", 0, 0, 0)
        return CopyState(seen.log_id, seen.next_frame, seen.end, seen.bytes)

    @property
    def _position(self) -> tuple[str, int]:
        seen = self._published
        return ("", 0) if seen is None else (seen.log_id, seen.next_frame)

    @property
    def _has_pending_hello(self) -> bool:
        return bool(self._pending_hellos)

    def _read_now(self, statement: Statement) -> Rows | None:
        return self._copy.read_now(statement)

    async def _read(self, statement: Statement) -> Rows | None:
        return await self._copy.read(statement)

    def note_write(self, asked_at: float | None) -> None:
        """Use the answer to a write as a hello: it reports the last frame. Without one, send a hello."""
        if asked_at is None:
            self._refresh_requested.set()
        elif self.is_in_touch and self._pending_hellos.add_write(
            asked_at, self._watermark.latest_position, self._position
        ):
            self._settle_hellos()

    # --- following -------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Take in what the follower publishes, until this process takes over."""
        os.close(open_private(state_of(self._path)))  # so that there is a file to watch
        with self._events() as events:
            inode, retry_s = state_of(self._path).stat().st_ino, 0.0
            while True:
                self._take_in()
                is_published = await events.wait_for_event(retry_s or _CHECK_S)
                if events.take_closed():
                    retry_s = _FIRST_RETRY_S
                if is_published and not retry_s:
                    continue
                if self._take_over():
                    return
                retry_s = 0.0 if retry_s > _CHECK_S / 4 else retry_s * 4
                if not is_published and inode != state_of(self._path).stat().st_ino:
                    raise FileNotFoundError(f"{state_of(self._path)} was replaced")

    def _events(self) -> Inotify | NoEvents:
        try:
            return Inotify(state_of(self._path))
        except OSError:  # the limit of inotify is reached
            return NoEvents()

    def _take_in(self) -> None:
        """Take in what the follower has published."""
        seen, before = read_published(self._path), self._published
        if seen is not None and seen.host != self._host:
            seen = None  # from before the machine was started, or of another container
        self._published = seen
        self._copy.follow(seen)
        if seen is None or before is None or seen.copy_id != before.copy_id:
            self._pending_hellos.clear()
            self._as_of = NEVER
        if seen is not None:
            if seen.hello_at:
                self._watermark.place(seen.log_id, seen.hello_at)
            if seen.is_readable and seen.as_of:
                self._as_of = max(self._as_of, seen.as_of)
            elif seen.state == ReplicaState.OFF:
                self._as_of = NEVER
        self._settle_hellos()
        self._enter(*self._judge(seen))
        if seen is not None and before is not None and seen.commits != before.commits:
            self._changes.bump(is_heartbeat=seen.other_commits == before.other_commits)

    def _judge(self, seen: Published | None) -> tuple[ReplicaState, str]:
        """Return the state, and its reason."""
        if seen is None:
            return (
                ReplicaState.CATCHING_UP,
                "no process with the same clock and process numbers has followed the server yet",
            )
        state = ReplicaState(seen.state)
        if state is ReplicaState.IN_TOUCH and self._monotonic() - seen.as_of > _SILENT_S:
            return ReplicaState.OUT_OF_TOUCH, f"process {seen.pid}, which follows the server, does not report"
        return state, seen.error

    def _enter(self, state: ReplicaState, error: str) -> None:
        """Change the state, and wake all watches if it is new."""
        is_new = state is not self._state
        self._state, self._error = state, error
        if is_new:
            _log.info("shared replica state changed: state=%s reason=%s", state, error)
            self._changes.bump()

    def _settle_hellos(self) -> None:
        """Settle the hellos whose position the copy has reached."""
        if self._published is not None and self._published.is_readable:
            self._as_of = max(self._as_of, self._pending_hellos.settle(self._published.next_frame))
        self._progress.bump()

    async def _ask(self) -> None:
        """Send a hello whenever a read needs one."""
        failed = 0
        while True:
            await self._refresh_requested.wait()
            self._refresh_requested.clear()
            asked_at = self._monotonic()
            try:
                hello = await self._log.hello(_HELLO_TIMEOUT_S)
            except MeshError as fault:
                self._fault = fault if isinstance(fault, Unauthorized) else None
                self._progress.bump()
                failed += 1
                await asyncio.sleep(backoff_s(failed, random.random))
                continue
            failed, seen, self._fault = 0, self._published, None
            self._hello_s = self._monotonic() - asked_at
            # Of another run of the primary, the follower must verify the log first.
            if seen is not None and (hello.session, hello.log_id) == (seen.session, seen.log_id):
                self._watermark.place(hello.log_id, asked_at)
                self._pending_hellos.add(asked_at, hello.next_frame)
                self._settle_hellos()

    # --- status ----------------------------------------------------------------------------------

    def status(self) -> ReplicaStatus:
        """Return the replica's status."""
        held, seen = self._copy_state, self._published
        return ReplicaStatus(
            driver=self.driver,
            state=self._state,
            frame=held.next_frame - 1 if held.log_id else None,
            lag_frames=max(0, held.end - held.next_frame) if held.log_id else None,
            age_ms=round((self._monotonic() - self._as_of) * 1_000) if self._as_of != NEVER else None,
            bytes=held.bytes,
            error=self._error,
            snapshots=0 if seen is None else seen.snapshots,
            start_overs=0 if seen is None else seen.start_overs,
            fetched_bytes=0 if seen is None else seen.fetched_bytes,
            follower_pid=None if seen is None else seen.pid,
        )

    async def close(self) -> None:
        """Stop reading. May be called twice."""
        tasks, self._tasks = self._tasks, []
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._state, self._error = ReplicaState.OFF, "it is closed"
        self._as_of = NEVER
        self._progress.bump()
        self._copy.close()
        await self._log.close()
