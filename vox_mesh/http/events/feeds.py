"""The sources of events, each read once for all listeners.

A commit after a quiet time is read at once. On a busy mesh the next read waits for a multiple of what the
last one took, so that listeners cost a small share of a core however many commits there are.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator
from typing import Any, Final

import orjson

from vox_mesh.errors import DatabaseUnavailable, MeshError, StoreClosed
from vox_mesh.http.events.state import ATTENTION, PROGRESS, Snapshot, overview_parts
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.slices import in_slices
from vox_mesh.views.live.attention import AttentionReader
from vox_mesh.views.live.progress import read_progress
from vox_mesh.views.oplog import stamped_record, topic_of
from vox_mesh.views.overview import OverviewReader
from vox_mesh.views.redaction import redacted_json

MIN_INTERVAL_S: Final = 0.05
"""The shortest time between two reads of the state."""

MAX_INTERVAL_S: Final = 1.0
COST_FACTOR: Final = 20
"""The time between two reads, as a multiple of what a read takes: listeners use at most 5 % of a core."""

_COMPARED_READS: Final = 5
_RETRY_DELAY_S: Final = 2.0
_LOG_REST_S: Final = 0.05
_KEPT_ENTRIES: Final = 256
_KEPT_CHARACTERS: Final = 4 * 2**20
_PAGE: Final = 100

_log = logging.getLogger(__name__)


def interval_after(took_s: float) -> float:
    """Return the time until the next read of the state, after one of this duration."""
    return min(max(COST_FACTOR * took_s, MIN_INTERVAL_S), MAX_INTERVAL_S)


class StateFeed:
    """Reads the state after changes while there are listeners, as far as one of them has selected it."""

    def __init__(self, mesh: MeshServices) -> None:
        self._mesh = mesh
        self._store = mesh.store
        self._overview = OverviewReader(mesh)
        self._attention = AttentionReader(mesh)
        self._wanted: Counter[str] = Counter()
        self._listeners = 0
        self._changes = self._store.changes()
        self._task: asyncio.Task[None] | None = None
        self._latest: Snapshot | None = None
        self._changed = asyncio.Event()

    async def watch(self, topics: frozenset[str]) -> AsyncGenerator[Snapshot, None]:
        """Yield the state as far as the topics need it, and again after changes; without topics, once.

        A slow consumer skips to the latest.
        """
        if not topics:
            yield Snapshot(topics)
            return
        self._listeners += 1
        self._wanted.update(topics)
        self._start()
        seen: Snapshot | None = None
        try:
            while True:
                changed, latest = self._changed, self._latest
                if latest is not None and latest is not seen and latest.topics >= topics:
                    seen = latest
                    yield latest
                else:
                    if latest is not None and latest is not seen:
                        self._changes.wake()  # it was read before this listener had selected its topics
                    await changed.wait()
        finally:
            self._listeners -= 1
            self._wanted.subtract(topics)
            if not self._listeners:
                self._stop()

    def _start(self) -> None:
        if self._task is None or self._task.done():
            read_loop = self._store.faults.keep_running("events", self._run, fatal=(StoreClosed,))
            self._task = asyncio.create_task(read_loop, name="vox-mesh-state-feed")

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = self._latest = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        took_s = deque[float](maxlen=_COMPARED_READS)
        self._changes = self._store.changes()
        async for turn in self._changes:
            began = loop.time()
            try:
                self._latest = await self._read(frozenset(+self._wanted))
            except MeshError as error:
                _log.info("events paused: %s", error.line)
                turn.wait_at_most(_RETRY_DELAY_S)
            except Exception as error:
                self._store.faults.note("events", error)
                turn.wait_at_most(_RETRY_DELAY_S)
            took_s.append(loop.time() - began)
            turn.rest(interval_after(min(took_s)))  # one that takes longer may have waited for the processor
            self._changed.set()
            self._changed = asyncio.Event()

    async def _read(self, topics: frozenset[str]) -> Snapshot:
        snapshot = Snapshot(topics)
        if parts := overview_parts(topics):
            snapshot.overview = await self._overview.read(parts)
        if ATTENTION in topics:
            snapshot.attention = await self._attention.read(fresh=False)
        if PROGRESS in topics:
            snapshot.progress = await read_progress(self._mesh)
        return snapshot


class FedEntry:
    """An entry of the log, encoded once for all listeners."""

    __slots__ = ("_encoded", "_entry", "_mesh", "id", "topic")

    def __init__(self, mesh: MeshServices, entry: LogEntry) -> None:
        self._mesh = mesh
        self._entry = entry
        self._encoded: dict[bool, orjson.Fragment] = {}
        self.id = entry.id
        self.topic = topic_of(entry)

    @property
    def size(self) -> int:
        """Return about how many characters it has."""
        return len(self._entry.payload) + len(self._entry.result or "")

    async def json(self, *, is_redacted: bool) -> orjson.Fragment:
        """Return its record as JSON; redacted, as a read-only credential sees it."""
        if is_redacted not in self._encoded:
            record: Any = stamped_record(self._mesh, self._entry)
            text = b"".join(await in_slices(redacted_json(record))) if is_redacted else orjson.dumps(record)
            self._encoded[is_redacted] = orjson.Fragment(text)
        return self._encoded[is_redacted]


class LogFeed:
    """Follows the log once for all listeners. A listener that is far behind reads the log by itself first."""

    def __init__(self, mesh: MeshServices) -> None:
        self._mesh = mesh
        self._listeners = 0
        self._task: asyncio.Task[None] | None = None
        self._kept: deque[FedEntry] = deque()
        self._size = 0
        self._floor: int | None = None  # all later entries are kept
        self._rewinds = 0
        self._changed = asyncio.Event()

    async def follow(self, after_id: int) -> AsyncGenerator[FedEntry, None]:
        """Yield the entries committed after the one with this id, without end."""
        self._listeners += 1
        if self._task is None or self._task.done():
            follow = self._mesh.store.faults.keep_running("event log", self._run, fatal=(StoreClosed,))
            self._task = asyncio.create_task(follow, name="vox-mesh-log-feed")
        rewinds = self._rewinds
        try:
            while True:
                changed, floor = self._changed, self._floor
                if rewinds != self._rewinds:
                    rewinds, after_id = self._rewinds, min(after_id, floor or 0)
                if floor is not None and after_id < floor:
                    found = await self._read(after_id, floor)
                    after_id = floor if not found else after_id  # the rest belongs to other meshes
                else:
                    found = [each for each in self._kept if each.id > after_id]
                    if not found:
                        await changed.wait()
                for entry in found:
                    after_id = entry.id
                    yield entry
        finally:
            self._listeners -= 1
            if not self._listeners:
                self._task.cancel()
                self._task = self._floor = None
                self._forget()

    async def _read(self, after_id: int, up_to: int) -> list[FedEntry]:
        """Return the next entries from the log; outages are waited out."""
        while True:
            try:
                found = await self._mesh.oplog.after(after_id, _PAGE, up_to=up_to)
            except DatabaseUnavailable:
                await asyncio.sleep(_RETRY_DELAY_S)
            else:
                return [FedEntry(self._mesh, each) for each in found]

    async def _run(self) -> None:
        self._forget()
        self._floor = await self._mesh.oplog.last_id()
        self._wake()
        async for entry in self._mesh.oplog.follow(self._floor, max_rest_s=_LOG_REST_S):
            self._keep(FedEntry(self._mesh, entry))
            self._wake()

    def _keep(self, entry: FedEntry) -> None:
        last = self._kept[-1].id if self._kept else self._floor or 0
        if entry.id <= last:  # the database was rolled back: the log goes on from an earlier entry
            self._forget()
            self._floor = entry.id - 1
            self._rewinds += 1
        self._kept.append(entry)
        self._size += entry.size
        while len(self._kept) > _KEPT_ENTRIES or (self._size > _KEPT_CHARACTERS and len(self._kept) > 1):
            gone = self._kept.popleft()
            self._floor = gone.id
            self._size -= gone.size

    def _forget(self) -> None:
        self._kept.clear()
        self._size = 0

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
