"""The witness: this node's memory of the database's state, kept across restarts in its slot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from vox_mesh.model.nodes.store_memory import Epoch, StoreMemory
from vox_mesh.model.oplog.verification import RecordedHead
from vox_mesh.store.files import replace_private

_log = logging.getLogger(__name__)

_MAX_BYTES: Final = 2**16
_REPLACED: Final = ".replaced.json"


class RememberedStore(NamedTuple):
    """A node's memory of the database, and where it is kept."""

    node_id: str
    memory: StoreMemory
    source: str

    @property
    def heads(self) -> list[RecordedHead]:
        """Return the end of the node's chain that it remembers, if it does."""
        if not self.memory.entry_id:
            return []
        return [RecordedHead(self.node_id, self.memory.seq, self.memory.hash, self.source)]


class MemoryKeeper(Protocol):
    """Store a memory beyond the life of its process."""

    def load(self) -> StoreMemory | None:
        """Return the stored memory, if there is one."""

    async def keep(self, memory: StoreMemory) -> None:
        """Store the memory."""

    async def set_aside(self, memory: StoreMemory) -> None:
        """Keep the memory of a database that was replaced by another one."""


class MemoryFile:
    """A file in a slot, replaced as a whole, and readable by this user alone."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> StoreMemory | None:
        """Return the memory in the file; an unreadable file counts as missing."""
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
        """Write the memory to the file, in a thread."""
        try:
            await asyncio.to_thread(self._replace, memory.encode())
        except OSError as error:
            _log.warning("store memory not written: path=%s error=%s", self._path, error.strerror)

    async def set_aside(self, memory: StoreMemory) -> None:
        """Keep the memory next to the file, unless an earlier one is there: verifying reports it."""
        path = replaced_path(self._path)
        if not path.exists():
            await MemoryFile(path).keep(memory)

    def _replace(self, text: bytes) -> None:
        replace_private(self._path, text, self._path.with_suffix(".new"))


def replaced_path(path: Path) -> Path:
    """Return the file of the memory of a database that was replaced, next to that of the present one."""
    return path.with_name(path.stem + _REPLACED)


class SharedPlace:
    """A place on a shared memory backend; it lasts as long as the backend."""

    def __init__(self, memories: MutableMapping[str, StoreMemory], place: str) -> None:
        self._memories = memories
        self._place = place

    def load(self) -> StoreMemory | None:
        """Return the stored memory, if there is one."""
        return self._memories.get(self._place)

    async def keep(self, memory: StoreMemory) -> None:
        """Store the memory."""
        self._memories[self._place] = memory

    async def set_aside(self, memory: StoreMemory) -> None:
        """Forget it: the backend ends with the process."""


class StoreWitness:
    """The newest state of the database that was acknowledged to this node."""

    def __init__(self, keeper: MemoryKeeper | None = None) -> None:
        self._keeper = keeper
        self.seen = StoreMemory() if keeper is None else keeper.load() or StoreMemory()
        """The acknowledged state; a new object whenever it advances."""
        self._highest_token = 0

    @property
    def memory(self) -> StoreMemory:
        """Return the acknowledged state and the highest fencing token."""
        token = max(self.seen.fence_token, self._highest_token)
        return self.seen._replace(fence_token=token)

    def record_token(self, fence_token: int) -> None:
        """Record a fencing token that was granted to this process."""
        self._highest_token = max(self._highest_token, fence_token)

    def record_join(self, epoch: Epoch, incarnation: int, beats: int, last_id: int) -> None:
        """Start over with a new incarnation; only the highest fencing token is kept."""
        token = self.memory.fence_token
        self.seen = StoreMemory(epoch, incarnation, beats, last_id, fence_token=token)

    def record_beat(self, incarnation: int, beats: int, last_id: int) -> None:
        """Record an acknowledged heartbeat; one of an earlier incarnation is ignored."""
        seen = self.seen
        if incarnation == seen.incarnation:
            last_id = max(seen.last_id, last_id)
            self.seen = seen._replace(beats=max(seen.beats, beats), last_id=last_id)

    def record_entry(self, entry_id: int, op_id: str, seq: int, entry_hash: str) -> None:
        """Record acknowledged entries of the node's own chain, of which this is the last."""
        seen = self.seen
        self.seen = seen._replace(
            last_id=max(seen.last_id, entry_id), entry_id=entry_id, entry_op=op_id, seq=seq, hash=entry_hash
        )

    async def set_aside(self) -> None:
        """Keep the memory apart: the database is another one now."""
        if self._keeper is not None and self.seen.entry_id:
            await self._keeper.set_aside(self.memory)

    async def save(self) -> None:
        """Store the memory for the next process."""
        if self._keeper is not None and self.seen.incarnation:
            await self._keeper.keep(self.memory)
