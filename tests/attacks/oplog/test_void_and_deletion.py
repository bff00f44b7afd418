"""A segment is declared void while its entries are deleted: one of both is refused, the log stays whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.retention.test_archiving import maintenance_of
from tests.support.messages.messaging import NodeGroup
from tests.support.oplog.deletions import (
    archive_of,
    delete_archived,
    fill_archive,
    problems,
    register_notes,
    void,
)
from vox_mesh import Script
from vox_mesh.errors import BadValue, LockHeld
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.segment import ARCHIVE, void_payload
from vox_mesh.node import MeshNode
from vox_mesh.oplog.pages import ALL_ENTRIES, MAX_PAGE_ENTRIES, MAX_POSITION, EntryFilter, Pages
from vox_mesh.store.script import Op
from vox_mesh.store.targets.target import FolderTarget


class Interrupted(FolderTarget):
    """A folder of which something is asked, and meanwhile another process of the owner does its work."""

    def __init__(self, folder: Path, node: MeshNode, asked: int = 1) -> None:
        """`asked` is the number of the question that is interrupted."""
        super().__init__(folder)
        self._node = node
        self._left = asked

    def _may_interrupt(self) -> bool:
        self._left -= 1
        return self._left == 0


class VoidingTarget(Interrupted):
    """While a segment is read, the owner declares it void."""

    @asynccontextmanager
    async def get(self, name: str, size: int) -> AsyncIterator[Path]:
        """Open a file after its segment is void."""
        if self._may_interrupt():
            op = (await self._node.oplog.tail(1, kind=ARCHIVE))[0]
            await self._node.store.write(Script(op=Op(ARCHIVE, void_payload(op.op_id), signed=True)))
        async with super().get(name, size) as path:
            yield path


class DeletingTarget(Interrupted):
    """While it is asked for a file, the entries of the segment are deleted, and then the file is lost."""

    async def sizes(self, names: Collection[str]) -> dict[str, int]:
        """Return no sizes, after the deletion."""
        if self._may_interrupt():
            assert await delete_archived(self._node, FolderTarget(self._folder)) > 20
        return {}


class ForgetfulPages(Pages):
    """Pages that lack an entry."""

    async def after(
        self,
        after_id: int,
        up_to: int = MAX_POSITION,
        wanted: EntryFilter = ALL_ENTRIES,
        limit: int = MAX_PAGE_ENTRIES,
    ) -> list[LogEntry]:
        """Return a page without its third entry."""
        page = await super().after(after_id, up_to, wanted, limit)
        return [*page[:2], *page[3:]]


@pytest.fixture
async def owner(crowd: NodeGroup) -> MeshNode:
    """The node of the owner."""
    owner = await crowd.node("one")
    register_notes(owner)
    return owner


async def test_nothing_is_deleted_of_a_segment_that_is_declared_void_meanwhile(
    owner: MeshNode, tmp_path: Path
) -> None:
    await fill_archive(owner, FolderTarget(tmp_path / "archive"))
    target = VoidingTarget(tmp_path / "archive", owner, asked=2)  # first, the look for lost files
    assert await delete_archived(owner, target) == 0
    assert await problems(owner) == []
    await fill_archive(owner, FolderTarget(tmp_path / "archive"))
    assert await delete_archived(owner, FolderTarget(tmp_path / "archive")) > 20
    assert await problems(owner, FolderTarget(tmp_path / "archive")) == []


async def test_a_segment_is_not_declared_void_whose_entries_are_deleted_meanwhile(
    owner: MeshNode, tmp_path: Path
) -> None:
    await fill_archive(owner, FolderTarget(tmp_path / "archive"))
    with pytest.raises(BadValue, match="may be deleted"):
        await void(owner, DeletingTarget(tmp_path / "archive", owner), 1)
    assert await problems(owner) == []


async def test_while_a_node_archives_no_segment_is_declared_void(
    crowd: NodeGroup, owner: MeshNode, tmp_path: Path
) -> None:
    target = FolderTarget(tmp_path / "archive")
    await fill_archive(owner, target)
    other = await crowd.node("two")
    (path,) = (tmp_path / "archive").iterdir()
    path.unlink()
    leading = maintenance_of(other, tmp_path / "archive")
    assert await leading._leadership.keep(60.0)
    await owner.store.synced()
    with pytest.raises(LockHeld, match="nothing declared void: another process archives"):
        await void(owner, target, 1)
    await leading._leadership.resign()
    await owner.store.synced()
    assert (await void(owner, target, 1)).number == 1
    await other.store.synced()
    assert await leading._leadership.keep(60.0)


async def test_a_segment_that_the_archive_has_is_not_declared_void(owner: MeshNode, tmp_path: Path) -> None:
    target = FolderTarget(tmp_path / "archive")
    await fill_archive(owner, target)
    with pytest.raises(BadValue, match="the archive has it as the log records it"):
        await void(owner, target, 1)


async def test_a_false_segment_with_a_file_is_declared_void(
    crowd: NodeGroup, owner: MeshNode, tmp_path: Path
) -> None:
    target = FolderTarget(tmp_path / "archive")
    for number in range(8):
        await owner.oplog.append("note", {"n": number})
    await owner.store.write(owner.oplog.seal_script())
    liar = await crowd.node("two")
    await liar.store.synced()
    lying = archive_of(liar, target)
    lying._pages = ForgetfulPages(liar.store)
    (false,) = await lying.run_once(0)
    await owner.store.synced()
    assert await void(owner, target, 1) == false
    (first,) = await archive_of(owner, target).run_once(0)
    assert first.number == 1
    assert await problems(owner, target) == []
