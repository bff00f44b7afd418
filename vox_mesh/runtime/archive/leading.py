"""The leadership of the archive: one process at a time archives, deletes or declares segments void."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from vox_mesh.errors import LockHeld
from vox_mesh.locks.leadership import Leadership
from vox_mesh.oplog.archive.false_segments import FalseSegments, Guard
from vox_mesh.oplog.archive.segment_ops import RecordedSegment
from vox_mesh.store.script import Statement
from vox_mesh.store.targets.target import FileTarget

if TYPE_CHECKING:
    from vox_mesh.runtime.services import MeshServices

OFFICE: Final = "archive"
"""The name of the leadership."""

LEASE_S: Final = 600.0

Monotonic = Callable[[], float]


def archive_leadership(mesh: MeshServices, monotonic: Monotonic) -> Leadership:
    """Return the leadership, which is not taken yet."""
    return Leadership(OFFICE, mesh.store, mesh.locks, mesh.clock, monotonic, log_level=logging.DEBUG)


@asynccontextmanager
async def lead_archive(
    mesh: MeshServices, monotonic: Monotonic, undone: str, lease_s: float = LEASE_S
) -> AsyncIterator[Guard]:
    """Lead until the end of the block. Raises `LockHeld` if another process does; `undone` says what is not.

    Each write needs a guard of its own, which renews the lease.
    """
    leadership = archive_leadership(mesh, monotonic)

    async def guard() -> Statement:
        if not await leadership.keep(lease_s):
            raise LockHeld(f"{undone}: another process archives", hint="try again later")
        return leadership.guard()

    await guard()
    try:
        yield guard
    finally:
        await leadership.resign()


async def void_segment(
    mesh: MeshServices, target: FileTarget, number: int, monotonic: Monotonic
) -> RecordedSegment:
    """Declare a segment void, and with it all that follow it, while no other process archives or deletes.

    Raises:
        BadValue: This process does not act for the owner, the archive has the segment, or its entries may be
            deleted.
        LockHeld: Another process archives or deletes.
        NotKnown: The log records no such segment.
    """
    false_segments = FalseSegments(mesh.store, mesh.identity, mesh.trusted_keys, target)
    async with lead_archive(mesh, monotonic, "nothing declared void") as guard:
        return await false_segments.void(number, guard)
