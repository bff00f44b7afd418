"""The witness: what this node has seen of the database, kept across restarts in its slot."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Final, Protocol

from vox_mesh.model.nodes.store_memory import Epoch, StoreMemory

_log = logging.getLogger(__name__)

_MAX_BYTES: Final = 2**16


class MemoryKeeper(Protocol):
    """Where a memory outlives its process."""

    def load(self) -> StoreMemory | None:
        """What was kept last, if anything was."""

    async def keep(self, memory: StoreMemory) -> None:
        """Keep this from now on."""


class MemoryFile:
    """A file in a slot, replaced as a whole; readable by this user alone."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> StoreMemory | None:
        """What the file holds; one that can't be read is as good as none."""
        try:
            with self._path.open("rb") as file:
                memory = StoreMemory.decode(file.read(_MAX_BYTES))
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("store memory unreadable: path=%s error=%s", self._path, error.strerror)
            return None
        if memory is None:
            _log.warning("store memory unreadable: path=%s", self._path)
        return memory

    async def keep(self, memory: StoreMemory) -> None:
        """Write it in a thread: a disk may take its time."""
        try:
            await asyncio.to_thread(self._replace, memory.encode())
        except OSError as error:
            _log.warning("store memory not written: path=%s error=%s", self._path, error.strerror)

    def _replace(self, text: bytes) -> None:
        draft = self._path.with_suffix(".new")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, text)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        draft.replace(self._path)


class SharedPlace:
    """A place on a shared memory home: it lasts for as long as that does."""

    def __init__(self, memories: MutableMapping[str, StoreMemory], place: str) -> None:
        self._memories = memories
        self._place = place

    def load(self) -> StoreMemory | None:
        """What was kept last here."""
        return self._memories.get(self._place)

    async def keep(self, memory: StoreMemory) -> None:
        """Keep this from now on."""
        self._memories[self._place] = memory


class StoreWitness:
    """The newest state of the database that was acknowledged to this node."""

    def __init__(self, keeper: MemoryKeeper | None = None) -> None:
        self._keeper = keeper
        self.seen = StoreMemory() if keeper is None else keeper.load() or StoreMemory()
        """What was acknowledged; another object whenever that is more."""
        self.highest_token: Callable[[], int] = lambda: 0
        """The highest fencing token that this process was given: whoever knows says so here."""

    @property
    def memory(self) -> StoreMemory:
        """What was acknowledged, and the highest token."""
        token = max(self.seen.fence_token, self.highest_token())
        return self.seen._replace(fence_token=token)

    def joined(self, epoch: Epoch, incarnation: int, beats: int, last_id: int) -> None:
        """A new incarnation begins: what was seen before is of no more matter, but for the tokens."""
        token = self.memory.fence_token
        self.seen = StoreMemory(epoch, incarnation, beats, last_id, fence_token=token)

    def beat(self, incarnation: int, beats: int, last_id: int) -> None:
        """A heartbeat was acknowledged; one of an earlier incarnation counts for nothing."""
        seen = self.seen
        if incarnation == seen.incarnation:
            last_id = max(seen.last_id, last_id)
            self.seen = seen._replace(beats=max(seen.beats, beats), last_id=last_id)

    def appended(self, entry_id: int, op_id: str, seq: int, entry_hash: str) -> None:
        """Entries of the node's own chain were acknowledged, of which this is the last."""
        seen = self.seen
        self.seen = seen._replace(
            last_id=max(seen.last_id, entry_id), entry_id=entry_id, entry_op=op_id, seq=seq, hash=entry_hash
        )

    async def save(self) -> None:
        """Have it outlive this process."""
        if self._keeper is not None and self.seen.incarnation:
            await self._keeper.keep(self.memory)
