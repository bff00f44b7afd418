"""Archiving by nodes: one at a time, once in an interval, and not of a broken log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.messages.messaging import NodeGroup, write
from vox_mesh.errors import ArchiveFailed
from vox_mesh.model.oplog.segment import Segment
from vox_mesh.node import MeshNode
from vox_mesh.runtime.archive.maintenance import ArchiveMaintenance
from vox_mesh.store.targets.target import FolderTarget


def maintenance_of(node: MeshNode, folder: Path, interval_s: float = 86_400.0) -> ArchiveMaintenance:
    """The turns of a node with an archive."""
    update = {"archive_dir": folder, "archive_after": 0.0, "archive_interval": interval_s}
    settings = node._settings.model_copy(update=update)
    return ArchiveMaintenance(node, settings, lambda: 0.5, node._monotonic)


async def archived(node: MeshNode, folder: Path, interval_s: float = 86_400.0) -> list[Segment]:
    """The segments of one turn of a node."""
    return await maintenance_of(node, folder, interval_s).run_once()


async def test_one_node_archives_and_the_others_do_not_until_the_interval_is_over(
    crowd: NodeGroup, tmp_path: Path
) -> None:
    one, two = await crowd.node("one"), await crowd.node("two")
    (segment,) = await archived(one, tmp_path / "archive")
    await two.store.synced()
    assert await archived(two, tmp_path / "archive") == []
    (second,) = await archived(two, tmp_path / "archive", interval_s=0.0)
    assert (segment.number, second.number) == (1, 2)
    reports = await two.oplog.verify(archive=FolderTarget(tmp_path / "archive"))
    assert [each.problem for each in reports if each.problem] == []


async def test_while_another_node_archives_nothing_is_done(crowd: NodeGroup, tmp_path: Path) -> None:
    one, two = await crowd.node("one"), await crowd.node("two")
    leading = maintenance_of(one, tmp_path / "archive")
    assert await leading._leadership.keep(60.0)
    await two.store.synced()
    assert await archived(two, tmp_path / "archive") == []
    await leading._leadership.resign()
    await two.store.synced()
    assert len(await archived(two, tmp_path / "archive")) == 1


async def test_a_broken_log_is_not_archived_and_the_health_check_says_so(
    local: MeshNode, tmp_path: Path
) -> None:
    turns = maintenance_of(local, tmp_path / "archive")
    local.health.archive = turns
    own = local.identity.chain
    sql = "UPDATE agent_oplog SET payload = '{}' WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3"
    await write(local, f"{sql} AND seq = 1", own)
    with pytest.raises(ArchiveFailed, match="the log is broken"):
        await turns.run_once()
    assert not (tmp_path / "archive").exists()
    (check,) = [each for each in local.health.checks() if each.name == "archive"]
    assert check.is_ok


async def test_a_pass_that_failed_is_soon_repeated(local: MeshNode, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    turns = maintenance_of(local, blocked / "archive", interval_s=0.024)
    with pytest.raises(ArchiveFailed):
        await turns.run_once()
    (segment,) = await archived(local, tmp_path / "archive", interval_s=0.0)
    assert segment.number == 1
