"""Follow the primary for all processes that share a copy, and publish how far it is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from vox_mesh.errors import SyncRefused
from vox_mesh.store.background import BackgroundFaults
from vox_mesh.store.replica.copy import Applied, Copy
from vox_mesh.store.replica.log import PrimaryLog
from vox_mesh.store.replica.mark import Mark
from vox_mesh.store.replica.overtaken import OvertakenCopies
from vox_mesh.store.replica.pushed import PushedReplica
from vox_mesh.store.replica.read_watermark import ReadWatermark
from vox_mesh.store.replica.replica import ReplicaState, ReplicaStatus
from vox_mesh.store.replica.shared.published import Published, Publisher, read_published
from vox_mesh.store.replica.shared.reader_lock import ReaderLock
from vox_mesh.store.replica.wire import Hello
from vox_mesh.store.watch.changes import Changes

DRIVER: Final = "shared"


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """The open files of a shared copy, of which this process is the follower."""

    copy: Copy
    lock: ReaderLock
    publisher: Publisher
    host: str
    commits: tuple[int, int]
    """The commits that were counted before."""

    @classmethod
    def open(cls, path: Path, mark: Mark, overtaken: OvertakenCopies, host: str) -> SharedFiles:
        """Open the files; raise `OSError` if one is a link or of another user."""
        before = read_published(path)
        lock = ReaderLock(path)
        try:
            publisher = Publisher(path)
            try:
                copy = Copy(path, mark, overtaken, lock)
            except OSError:
                publisher.close()
                raise
        except OSError:
            lock.close()
            raise
        counted = (0, 0) if before is None else (before.commits + 1, before.other_commits + 1)
        return cls(copy, lock, publisher, host, counted)

    def close(self) -> None:
        """Close the lock, then the published state, which wakes a process that takes over."""
        self.lock.close()
        self.publisher.close()


class SharedFollower(PushedReplica):
    """A pushed replica that other processes read, too."""

    driver = DRIVER

    def __init__(
        self,
        files: SharedFiles,
        mark: Mark,
        log: PrimaryLog,
        watermark: ReadWatermark,
        changes: Changes,
        *,
        max_stale_s: float,
        refused: Callable[[SyncRefused], None],
        faults: BackgroundFaults,
    ) -> None:
        super().__init__(
            files.copy,
            mark,
            log,
            watermark,
            changes,
            max_stale_s=max_stale_s,
            refused=refused,
            faults=faults,
        )
        self._files = files
        self._commits, self._other_commits = files.commits
        self._hello: tuple[str, float] = "", 0.0  # the log of the primary, and when it was asked
        self._publishing: asyncio.Handle | None = None
        self._publish_soon()

    @property
    def _is_watched(self) -> bool:
        return True  # perhaps by another process

    # --- publishing ------------------------------------------------------------------------------

    def _publish_soon(self) -> None:
        """Publish after the present step, and only once."""
        if self._publishing is None:
            self._publishing = asyncio.get_running_loop().call_soon(self._publish)

    def _publish(self) -> None:
        self._publishing = None
        copy, held, record = self._copy, self._copy_state, self._mark.record
        log_id, hello_at = self._hello
        state = Published(
            host=self._files.host,
            pid=os.getpid(),
            inode=copy.inode,
            log_id=held.log_id,
            start_overs=record.start_overs,
            next_frame=held.next_frame,
            end=held.end,
            session=record.session,
            is_readable=copy.is_readable and self._state is not ReplicaState.OFF,
            is_pushed=self.is_pushed,
            state=self._state,
            error=record.error,
            as_of=max(0.0, self._as_of),
            hello_at=hello_at if log_id == held.log_id else 0.0,
            commits=self._commits,
            other_commits=self._other_commits,
            bytes=held.bytes,
            snapshots=record.snapshots,
            fetched_bytes=self._fetched_bytes,
        )
        with suppress(OSError):  # readers then find the copy too old
            self._files.publisher.publish(state)

    def _handle_hello(self, asked_at: float, held: int, hello: Hello) -> None:
        super()._handle_hello(asked_at, held, hello)
        self._hello = hello.log_id, asked_at
        self._publish_soon()

    def _note_received(self) -> None:
        super()._note_received()
        self._publish_soon()

    def _note_applied(self, applied: Applied = Applied.ANYTHING) -> None:
        super()._note_applied(applied)
        self._commits += 1
        self._other_commits += applied is not Applied.HEARTBEATS

    def _advance_as_of(self, moment: float) -> None:
        super()._advance_as_of(moment)
        self._publish_soon()

    def _enter(self, state: ReplicaState, error: str = "") -> None:
        super()._enter(state, error)
        self._publish_soon()

    def status(self) -> ReplicaStatus:
        """Return the replica's status."""
        return replace(super().status(), follower_pid=os.getpid())

    async def _close(self) -> None:
        try:
            await super()._close()
        finally:
            if self._publishing is not None:
                self._publishing.cancel()
            self._files.close()
