"""Artifacts: the outputs of jobs, by content hash. Small ones are stored in the database."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, NamedTuple, Protocol, Self

import orjson
from blake3 import blake3

from vox_mesh.errors import ArtifactDamaged, ArtifactMissing, BadValue, MeshError
from vox_mesh.jobs.proof.blob_files import PIECE, BlobStore, PendingBlob
from vox_mesh.model.jobs.bundle import base64_content, base64_of
from vox_mesh.model.jobs.proof import BLAKE3, Output, hash_of, output_faults
from vox_mesh.store.rows import Row
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Statement
from vox_mesh.store.store import Store

MAX_INLINE: Final = 16 * 1024
"""The maximum size in bytes of an artifact that is stored in the database."""

MAX_STREAM: Final = 64 * 2**20
MAX_FILE: Final = 2**30

_SQL: Final = named("artifacts")
_FETCH_TIMEOUT_S: Final = 600.0
_FETCHED: Final = "fetched"
_MAX_READS: Final = 64  # with contents in the database, of up to 1.4 MiB in all
_ROW_BYTES: Final = 512  # of a row in a script, without its body


class Artifact(NamedTuple):
    """A stored output. `body` is set if it goes into the database together with its job."""

    name: str
    hash: str
    size: int
    type: str
    body: bytes | None = None

    @property
    def output(self) -> Output:
        """Return the artifact as a proof names it."""
        return Output(*self[:4])

    @property
    def weight(self) -> int:
        """Return its approximate size in a script, in bytes."""
        return _ROW_BYTES + (0 if self.body is None else len(self.body) * 4 // 3)


class ArtifactSink:
    """Receives bytes and becomes an artifact; it is cut at the limit, and says so at its end.

    Used in a `with` block, it is discarded at the end of the block unless it was finished.
    """

    def __init__(self, blobs: BlobStore, output: Output, limit: int) -> None:
        self.size = 0
        self.cut = 0
        self._blobs = blobs
        self._output = output
        self._limit = limit
        self._hasher = blake3()
        self._buffer = bytearray()
        self._draft: PendingBlob | None = None
        self._is_open = True

    def write(self, piece: bytes) -> None:
        """Append bytes. It blocks only while the system's disk buffers are full."""
        self._refuse_if_closed()
        accepted = piece[: max(0, self._limit - self.size)]
        self.cut += len(piece) - len(accepted)
        if accepted:
            self._add(accepted)

    @property
    def content_hash(self) -> str:
        """Return the hash of the bytes so far."""
        return BLAKE3 + self._hasher.hexdigest()

    async def finish(self) -> Artifact:
        """Make the written bytes a durable artifact."""
        return self.finish_now() if self._draft is None else await asyncio.to_thread(self.finish_now)

    def finish_now(self) -> Artifact:
        """Make the written bytes a durable artifact. Blocking."""
        self._refuse_if_closed()
        try:
            if self.cut:
                self._add(
                    f"\n[cut: {self.cut} more bytes were not kept; the limit is {self._limit}]\n".encode()
                )
            content_hash = self.content_hash
            body = None
            if self._draft is None:
                body = bytes(self._buffer)
            else:
                self._blobs.put(self._draft, content_hash)
        finally:
            self.discard()
        return Artifact(self._output.name, content_hash, self.size, self._output.type, body)

    def discard(self) -> None:
        """Drop the written bytes; without effect after `finish`."""
        self._is_open = False
        self._buffer.clear()
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
                self._draft = self._blobs.draft()
                self._blobs.add(self._draft, bytes(self._buffer))
                self._buffer.clear()
            if self._draft is None:
                self._buffer += piece
            else:
                self._blobs.add(self._draft, piece)
        except BaseException:
            self.discard()
            raise
        self._hasher.update(piece)
        self.size += len(piece)

    def _refuse_if_closed(self) -> None:
        if not self._is_open:
            raise BadValue(f"artifact {self._output.name} can't be extended: it was finished or discarded")


class ArtifactSource(Protocol):
    """Reads the files of other nodes."""

    def stream(self, node_id: str, content_hash: str) -> AsyncGenerator[bytes, None]:
        """Yield the content piece by piece, not verified. Raises `ArtifactMissing`."""


class Artifacts:
    """Stores the outputs of jobs, and verifies their hashes when they are read."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        node_id: Callable[[], str],
        source: Callable[[], ArtifactSource | None] = lambda: None,
    ) -> None:
        """`source`: where files of other nodes are read; `None` if they can't be."""
        self._store = store
        self._blobs = BlobStore(folder)
        self._node_id = node_id
        self._source = source

    # --- storing ---------------------------------------------------------------------------------

    async def keep(self, body: bytes, *, name: str, type: str) -> Artifact:  # noqa: A002 - as in an output
        """Store content; a small one is stored only when `rows` is written."""
        if len(body) <= MAX_INLINE:
            return self.keep_now(body, name=name, type=type)
        return await asyncio.to_thread(self.keep_now, body, name=name, type=type)

    def keep_now(self, body: bytes, *, name: str, type: str) -> Artifact:  # noqa: A002
        """Store content. Blocking; a small one is stored only when `rows` is written."""
        with self.sink(name, type, limit=len(body)) as sink:
            sink.write(body)
            return sink.finish_now()

    async def keep_file(self, path: Path, *, name: str, type: str, limit: int = MAX_FILE) -> Artifact:  # noqa: A002
        """Store a copy of a file. Raises `BadValue` if it is larger than `limit` bytes."""
        return await asyncio.to_thread(self.keep_file_now, path, name=name, type=type, limit=limit)

    def keep_file_now(self, path: Path, *, name: str, type: str, limit: int = MAX_FILE) -> Artifact:  # noqa: A002
        """Store a copy of a file. Blocking. Raises `BadValue` if it is larger than `limit` bytes."""
        with self.sink(name, type, limit=limit) as sink:
            try:
                with _open_regular(path) as file:
                    while (piece := file.read(PIECE)) and not sink.cut:
                        sink.write(piece)
            except OSError as error:
                raise BadValue(f"the file {path} can't be read: {error.strerror}") from None
            if sink.cut:
                raise BadValue(f"the file {path} is larger than {limit} bytes", hint="store it in parts")
            return sink.finish_now()

    def sink(self, name: str, type: str, limit: int = MAX_STREAM) -> ArtifactSink:  # noqa: A002
        """Return a sink whose bytes become an artifact."""
        output = Output(name, hash_of(b""), 0, type)
        if faults := output_faults(output):
            raise BadValue("; ".join(faults))
        return ArtifactSink(self._blobs, output, limit)

    def rows(self, artifacts: Iterable[Artifact]) -> Statement | None:
        """Return the statement that records artifacts and stores small ones, for their job's script."""
        # Each content once: an empty output, for example, occurs in many jobs.
        by_hash = {each.hash: each for each in artifacts}
        if not by_hash:
            return None
        items = [
            [each.hash, each.size, each.type, None if each.body is None else base64_of(each.body)]
            for each in by_hash.values()
        ]
        values = (*self._store.mesh_id, self._node_id(), orjson.dumps(items).decode())
        return Statement(_SQL["keep"], values)

    def note_unused(self, artifacts: Iterable[Artifact]) -> Statement | None:
        """Return the statement that has files removed which were stored, and did not become outputs."""
        hashes = [each.hash for each in artifacts if each.body is None]
        if not hashes:
            return None
        values = (*self._store.mesh_id, self._node_id(), orjson.dumps(hashes).decode())
        return Statement(_SQL["note_removals"], values)

    # --- reading ---------------------------------------------------------------------------------

    async def body(self, content_hash: str, *, limit: int = MAX_STREAM) -> bytes:
        """Return the content with this hash, from this node, the database or the node that has it.

        Raises `ArtifactMissing`, `ArtifactDamaged`, or `BadValue` if it is larger than `limit` bytes.
        """
        if (body := await self._local_body(content_hash, limit)) is not None:
            return body
        row = await self._require(content_hash)
        if row["body"] is not None:
            return _inline_body(content_hash, row)
        if row["size"] > limit:
            raise BadValue(
                f"{content_hash} is larger than {limit} bytes",
                hint="get it as a file: `vox-mesh job artifact get`",
            )
        await self._fetch(content_hash, row)
        body = await self._local_body(content_hash, limit)
        if body is None:
            raise self._missing(content_hash, row)
        return body

    async def bodies(self, hashes: Iterable[str], *, limit: int = MAX_STREAM) -> dict[str, bytes]:
        """Return the contents that are available, by hash; a missing or damaged one is left out."""
        found: dict[str, bytes] = {}
        wanted = list(hashes)
        for start in range(0, len(wanted), _MAX_READS):
            part = wanted[start : start + _MAX_READS]
            found |= await self._inline_bodies(part)
            others = [each for each in part if each not in found]
            for content_hash, body in zip(others, await self._try_all(others, limit), strict=True):
                if isinstance(body, bytes):
                    found[content_hash] = body
        return found

    async def _inline_bodies(self, hashes: Sequence[str]) -> dict[str, bytes]:
        """Return the contents that are in the database; one that is damaged is left out."""
        values = (*self._store.mesh_id, orjson.dumps(hashes).decode())
        rows = await self._store.read(_SQL["find_inline"], values)
        bodies = {row["hash"]: base64_content(row["body"]) for row in rows}
        return {each: body for each, body in bodies.items() if body is not None and hash_of(body) == each}

    async def _try_all(self, hashes: Sequence[str], limit: int) -> Sequence[bytes | BaseException]:
        found = await asyncio.gather(
            *(self.body(each, limit=limit) for each in hashes), return_exceptions=True
        )
        for each in found:
            if isinstance(each, BaseException) and not isinstance(each, MeshError):
                raise each
        return found

    async def path(self, content_hash: str) -> Path:
        """Return a file with this content, fetched if another node has it; do not change it."""
        path = await asyncio.to_thread(self._blobs.verified_path, content_hash)
        if path is not None:
            return path
        row = await self._require(content_hash)
        if row["body"] is None:
            await self._fetch(content_hash, row)
        else:
            await asyncio.to_thread(self._write_blob, content_hash, _inline_body(content_hash, row))
        return self._blobs.path_of(content_hash)

    def local_path(self, content_hash: str) -> Path | None:
        """Return the file of this node with this content, not verified, or `None`."""
        path = self._blobs.path_of(content_hash)
        return path if path.is_file() else None

    async def _local_body(self, content_hash: str, limit: int) -> bytes | None:
        if not self._blobs.path_of(content_hash).exists():
            return None
        return await asyncio.to_thread(self._blobs.read, content_hash, limit)

    async def _fetch(self, content_hash: str, row: Row) -> None:
        """Fetch a file from the node that has it, verify its hash and keep it here."""
        node_id, size = str(row["node_id"]), row["size"]
        source = self._source()
        if source is None or node_id == self._node_id():
            raise self._missing(content_hash, row)
        with self.sink(_FETCHED, "application/octet-stream", limit=min(size, MAX_FILE)) as sink:
            try:
                async with (
                    asyncio.timeout(_FETCH_TIMEOUT_S),
                    aclosing(source.stream(node_id, content_hash)) as pieces,
                ):
                    async for piece in pieces:
                        await asyncio.to_thread(sink.write, piece)
                        if sink.cut:
                            break
            except TimeoutError:
                raise ArtifactMissing(
                    f"the artifact {content_hash} did not come from node {node_id} in time",
                    node_id=node_id,
                    hint="try again",
                ) from None
            if sink.cut or sink.content_hash != content_hash:
                raise ArtifactDamaged(
                    f"node {node_id} sent another content than the artifact {content_hash}",
                    hint=f"check the disk of {node_id}, or retry the job",
                )
            await sink.finish()

    async def sweep(self) -> int:
        """Remove files that ended processes left unfinished, and return their number."""
        return await asyncio.to_thread(self._blobs.sweep)

    def _write_blob(self, content_hash: str, body: bytes) -> None:
        draft = self._blobs.draft()
        try:
            self._blobs.add(draft, body)
            self._blobs.put(draft, content_hash)
        finally:
            draft.discard()

    async def _require(self, content_hash: str) -> Row:
        row = await self._find(content_hash)
        if row is None:
            raise ArtifactMissing(f"there is no artifact {content_hash}", hint="wait until its job has ended")
        if row["body"] is None and (type(row["size"]) is not int or row["size"] <= MAX_INLINE):
            raise ArtifactDamaged(
                f"the size of the artifact {content_hash} was damaged in the database",
                hint="restore it from a backup",
            )
        return row

    def _missing(self, content_hash: str, row: Row) -> ArtifactMissing:
        node_id = row["node_id"]
        if node_id == self._node_id():
            path = self._blobs.path_of(content_hash)
            return ArtifactMissing(
                f"the artifact {content_hash} was kept here, but its file is gone: {path}",
                node_id=node_id,
                hint="check VOX_MESH_HOME, or retry its job to create it again",
            )
        return ArtifactMissing(
            f"the artifact {content_hash} ({row['size']} bytes) is on node {node_id}, not here",
            node_id=node_id,
            hint=f"read it on {node_id}, or set VOX_MESH_TOKEN to the value that {node_id} has",
        )

    async def _find(self, content_hash: str) -> Row | None:
        values = (*self._store.mesh_id, content_hash)
        # The replica may lag behind.
        for fresh in (False, True):
            if rows := await self._store.read(_SQL["find"], values, fresh=fresh):
                row: Row = rows[0]
                return row
        return None


def _inline_body(content_hash: str, row: Row) -> bytes:
    body = base64_content(row["body"])
    if body is None or hash_of(body) != content_hash:
        raise ArtifactDamaged(
            f"the artifact {content_hash} was damaged in the database", hint="restore it from a backup"
        )
    return body


def _open_regular(path: Path) -> BinaryIO:
    # Opening a pipe without a writer would block, and a device may have no end.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadValue(f"{path} is not a file")
    return os.fdopen(descriptor, "rb")
