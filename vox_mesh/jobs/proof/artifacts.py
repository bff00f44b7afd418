"""Artifacts: what jobs leave behind, by the hash of its content; the small ones in the database itself."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, NamedTuple, Self

import orjson
from blake3 import blake3

from vox_mesh.errors import ArtifactDamaged, ArtifactMissing, BadValue
from vox_mesh.jobs.proof.blob_files import PIECE, BlobStore, PendingBlob
from vox_mesh.model.jobs.proof import BLAKE3, Output, base64_content, base64_of, hash_of, output_faults
from vox_mesh.store.rows import Row
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Statement
from vox_mesh.store.store import Store

MAX_INLINE: Final = 16 * 1024
"""What is no larger is kept in the database."""

MAX_STREAM: Final = 64 * 2**20
MAX_FILE: Final = 2**30

_SQL: Final = named("artifacts")
_ROW_BYTES: Final = 512  # what a row takes in a script, without its body


class Artifact(NamedTuple):
    """Something kept. `body` is there if it is to go into the database, with the rows of its job."""

    name: str
    hash: str
    size: int
    type: str
    body: bytes | None = None

    @property
    def output(self) -> Output:
        """It as a proof names it."""
        return Output(*self[:4])

    @property
    def weight(self) -> int:
        """About how many bytes it takes in a script."""
        return _ROW_BYTES + (0 if self.body is None else len(self.body) * 4 // 3)


class ArtifactSink:
    """Takes bytes as they come and becomes an artifact; what exceeds the limit is cut, and the end says so.

    A block `with` it discards it at its end, unless it was finished.
    """

    def __init__(self, shelves: BlobStore, output: Output, limit: int) -> None:
        self.size = 0
        self.cut = 0
        self._shelves = shelves
        self._output = output
        self._limit = limit
        self._hasher = blake3()
        self._held = bytearray()
        self._draft: PendingBlob | None = None
        self._is_open = True

    def write(self, piece: bytes) -> None:
        """Add to it. It may wait for the disk, but only as long as the system's own buffers are full."""
        self._refuse_if_closed()
        taken = piece[: max(0, self._limit - self.size)]
        self.cut += len(piece) - len(taken)
        if taken:
            self._add(taken)

    async def finish(self) -> Artifact:
        """End it: what was written is an artifact now, and survives."""
        return self.finish_now() if self._draft is None else await asyncio.to_thread(self.finish_now)

    def finish_now(self) -> Artifact:
        """The same, for who may wait for the disk."""
        self._refuse_if_closed()
        try:
            if self.cut:
                self._add(
                    f"\n[cut: {self.cut} more bytes were not kept; the limit is {self._limit}]\n".encode()
                )
            content_hash = BLAKE3 + self._hasher.hexdigest()
            body = None
            if self._draft is None:
                body = bytes(self._held)
            else:
                self._shelves.put(self._draft, content_hash)
        finally:
            self.discard()
        return Artifact(self._output.name, content_hash, self.size, self._output.type, body)

    def discard(self) -> None:
        """Forget what was written; nothing happens if it is finished."""
        self._is_open = False
        self._held.clear()
        if self._draft is not None:
            self._draft.discard()
            self._draft = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def _add(self, piece: bytes) -> None:
        try:
            if self._draft is None and self.size + len(piece) > MAX_INLINE:
                self._draft = self._shelves.draft()
                self._shelves.add(self._draft, bytes(self._held))
                self._held.clear()
            if self._draft is None:
                self._held += piece
            else:
                self._shelves.add(self._draft, piece)
        except BaseException:
            self.discard()
            raise
        self._hasher.update(piece)
        self.size += len(piece)

    def _refuse_if_closed(self) -> None:
        if not self._is_open:
            raise BadValue(f"{self._output.name} was finished or discarded: nothing can be added to it")


class Artifacts:
    """Keeps what jobs leave behind, and gives it back only if it is what it was."""

    def __init__(self, store: Store, folder: Path, node_id: Callable[[], str]) -> None:
        self._store = store
        self._shelves = BlobStore(folder)
        self._node_id = node_id

    # --- keeping ---------------------------------------------------------------------------------

    async def keep(self, body: bytes, *, name: str, type: str) -> Artifact:  # noqa: A002 - as in an output
        """Keep some content; a small one is kept only with `rows`."""
        if len(body) <= MAX_INLINE:
            return self.keep_now(body, name=name, type=type)
        return await asyncio.to_thread(self.keep_now, body, name=name, type=type)

    def keep_now(self, body: bytes, *, name: str, type: str) -> Artifact:  # noqa: A002
        """The same, for who may wait for the disk."""
        with self.sink(name, type, limit=len(body)) as sink:
            sink.write(body)
            return sink.finish_now()

    async def keep_file(self, path: Path, *, name: str, type: str, limit: int = MAX_FILE) -> Artifact:  # noqa: A002
        """Keep a copy of a file; one that is larger than `limit` is refused."""
        return await asyncio.to_thread(self.keep_file_now, path, name=name, type=type, limit=limit)

    def keep_file_now(self, path: Path, *, name: str, type: str, limit: int = MAX_FILE) -> Artifact:  # noqa: A002
        """The same, for who may wait for the disk."""
        with self.sink(name, type, limit=limit) as sink:
            try:
                with _opened(path) as file:
                    while (piece := file.read(PIECE)) and not sink.cut:
                        sink.write(piece)
            except OSError as error:
                raise BadValue(f"the file {path} can't be read: {error.strerror}") from None
            if sink.cut:
                raise BadValue(f"the file {path} is larger than {limit} bytes", hint="keep it in parts")
            return sink.finish_now()

    def sink(self, name: str, type: str, limit: int = MAX_STREAM) -> ArtifactSink:  # noqa: A002
        """Something to write to that becomes an artifact."""
        output = Output(name, hash_of(b""), 0, type)
        if faults := output_faults(output):
            raise BadValue("; ".join(faults))
        return ArtifactSink(self._shelves, output, limit)

    def rows(self, artifacts: Iterable[Artifact]) -> Statement | None:
        """What makes artifacts known to all, and keeps the small ones: to be in the script of their job."""
        # Each content once; that of an empty output, for one, comes in every job.
        by_hash = {each.hash: each for each in artifacts}
        if not by_hash:
            return None
        items = [
            [each.hash, each.size, each.type, None if each.body is None else base64_of(each.body)]
            for each in by_hash.values()
        ]
        values = (*self._store.tenant[:2], self._node_id(), orjson.dumps(items).decode())
        return Statement(_SQL["keep"], values)

    # --- giving back -----------------------------------------------------------------------------

    async def body(self, content_hash: str, *, limit: int = MAX_STREAM) -> bytes:
        """The content with this hash, if it is here or in the database and no larger than `limit`."""
        if self._shelves.place(content_hash).exists():
            found = await asyncio.to_thread(self._shelves.read, content_hash, limit)
            if found is not None:
                return found
        return await self._inline(content_hash)

    async def path(self, content_hash: str) -> Path:
        """A file with this content, to be read only."""
        found = await asyncio.to_thread(self._shelves.checked, content_hash)
        if found is not None:
            return found
        body = await self._inline(content_hash)
        await asyncio.to_thread(self._shelve, content_hash, body)
        return self._shelves.place(content_hash)

    async def sweep(self) -> int:
        """Remove what processes left behind that ended while they wrote; how many files there were."""
        return await asyncio.to_thread(self._shelves.sweep)

    def _shelve(self, content_hash: str, body: bytes) -> None:
        draft = self._shelves.draft()
        try:
            self._shelves.add(draft, body)
            self._shelves.put(draft, content_hash)
        finally:
            draft.discard()

    async def _inline(self, content_hash: str) -> bytes:
        row = await self._find(content_hash)
        if row is None:
            raise ArtifactMissing(
                f"no artifact {content_hash} is known", hint="it is known from when its job has ended"
            )
        if row["body"] is None:
            raise self._missing(content_hash, row)
        body = base64_content(row["body"])
        if body is None or hash_of(body) != content_hash:
            raise ArtifactDamaged(
                f"the artifact {content_hash} was damaged in the database", hint="restore it from a backup"
            )
        return body

    def _missing(self, content_hash: str, row: Row) -> ArtifactMissing:
        node_id = row["node_id"]
        if node_id == self._node_id():
            place = self._shelves.place(content_hash)
            return ArtifactMissing(
                f"the artifact {content_hash} was kept here, but its file is gone: {place}",
                node_id=node_id,
                hint="was VOX_MESH_HOME moved? a run of the same job makes it anew",
            )
        return ArtifactMissing(
            f"the artifact {content_hash} ({row['size']} bytes) is kept by the node {node_id}, and not here",
            node_id=node_id,
            hint=f"ask for it where {node_id} runs",
        )

    async def _find(self, content_hash: str) -> Row | None:
        values = (*self._store.tenant[:2], content_hash)
        # A replica may not have heard of it yet.
        for fresh in (False, True):
            if rows := await self._store.read(_SQL["find"], values, fresh=fresh):
                row: Row = rows[0]
                return row
        return None


def _opened(path: Path) -> BinaryIO:
    # A pipe without a writer would keep us waiting, and a device may have no end.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadValue(f"{path} is not a file")
    return os.fdopen(descriptor, "rb")
