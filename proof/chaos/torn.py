"""Files as a crash of the machine may leave them: truncated, corrupted or half written."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Final

from vox_mesh.store.replica.paths import mark_of
from vox_mesh.store.slots import spools

_MOST_BYTES: Final = 4_096


def tear_replica(replica: Path, rng: random.Random) -> list[str]:
    """Damage one of a replica's files: a replica can be rebuilt. Return what was done."""
    files = [each for each in (replica, Path(f"{replica}.redo"), mark_of(replica)) if _size(each)]
    return [rng.choice((_cut, _flip))(rng.choice(files), rng)] if files else []


def tear_spools(home: Path, rng: random.Random) -> list[str]:
    """Damage the last write to each spool, as if it had not completed. Return what was done.

    Earlier writes are on disk, and no crash removes them: only the end is damaged.
    """
    logs = (Path(f"{spool}-wal") for spool in spools(home))
    return [_begin_write(log, rng) for log in logs if _size(log)]


def _cut(file: Path, rng: random.Random) -> str:
    size = _size(file)
    left = rng.randrange(size)
    os.truncate(file, left)
    return f"{file.name} cut from {size} to {left} bytes"


def _flip(file: Path, rng: random.Random) -> str:
    at = rng.randrange(_size(file))
    with file.open("r+b") as stream:
        stream.seek(at)
        was = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([was ^ (1 << rng.randrange(8))]))
    return f"{file.name} changed at {at}"


def _begin_write(file: Path, rng: random.Random) -> str:
    added = rng.randrange(1, _MOST_BYTES)
    with file.open("ab") as stream:
        stream.write(rng.randbytes(added))
    return f"{file.name} with {added} bytes of a write that was cut off"


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
