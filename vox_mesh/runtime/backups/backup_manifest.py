"""The manifest of a backup: which chunks it consists of, in their order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import BadValue
from vox_mesh.runtime.backups.chunks import Chunk

MAX_BYTES: Final = 2**24
"""That of a database of about 200 GB."""
_FORMAT: Final = "vox-mesh backup"
_VERSION: Final = 1
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_MAX_CHUNK_BYTES: Final = 2**26
"""Far more than `ChunkWriter` puts into one: earlier versions did not divide long lines."""


class BackupManifest(NamedTuple):
    """The chunks of a backup."""

    chunks: Sequence[Chunk]

    @property
    def size(self) -> int:
        """Return the size of all lines."""
        return sum(each.size for each in self.chunks)

    @property
    def content(self) -> bytes:
        """Return what is stored."""
        chunks = [[each.digest, each.size] for each in self.chunks]
        return orjson.dumps({"format": _FORMAT, "version": _VERSION, "chunks": chunks})


def read_manifest(content: bytes) -> BackupManifest:
    """Return a manifest from its content. Raises `BadValue` if no node can have written it."""
    try:
        document: Any = orjson.loads(content)
        if (document["format"], document["version"]) != (_FORMAT, _VERSION):
            raise BadValue("it has another format: a newer version of vox-mesh may have written it")
        return BackupManifest([_chunk_of(digest, size) for digest, size in document["chunks"]])
    except (ValueError, TypeError, KeyError) as error:
        raise BadValue(f"it is not a manifest of a backup: {error}") from None


def _chunk_of(digest: Any, size: Any) -> Chunk:
    is_digest = isinstance(digest, str) and _DIGEST.fullmatch(digest)
    if not is_digest or type(size) is not int or not 0 < size <= _MAX_CHUNK_BYTES:
        raise ValueError(f"{digest!r} of {size!r} bytes is no chunk")
    return Chunk(digest, size)
