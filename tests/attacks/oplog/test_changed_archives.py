"""An attacker who can write to the archive or the database changes one of them: the file is named."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.support.oplog.exports import log_of_two_chains
from vox_mesh import Script, Statement
from vox_mesh.oplog.archive.log_archive import LogArchive
from vox_mesh.store.targets.target import FolderTarget


@pytest.mark.parametrize("how", ["another of the same size", "lost"])
async def test_the_archive_verifies_only_with_the_files_that_were_archived(how: str, tmp_path: Path) -> None:
    target = FolderTarget(tmp_path / "archive")
    async with log_of_two_chains(tmp_path) as node:
        parts = (node.store, node.identity, node.clock, node.trusted_keys, node.oplog.verify)
        first, *_ = await LogArchive(*parts, target).run_once(0, max_entries=4)
        path = tmp_path / "archive" / first.file_name
        if how == "lost":
            path.unlink()
        else:
            content = path.read_bytes()
            path.write_bytes(content[:9] + b"\x07" + content[10:])  # of another system, with the same lines
            assert gzip.decompress(path.read_bytes()) == gzip.decompress(content)
        found = [each.problem for each in await node.oplog.verify(archive=target) if each.problem]
    assert [first.file_name in each for each in found] == [True]


async def test_the_archive_verifies_only_against_the_database_that_it_was_made_of(tmp_path: Path) -> None:
    target = FolderTarget(tmp_path / "archive")
    async with log_of_two_chains(tmp_path) as node:
        parts = (node.store, node.identity, node.clock, node.trusted_keys, node.oplog.verify)
        (segment,) = await LogArchive(*parts, target).run_once(0)
        sql = "UPDATE agent_oplog SET reason = 'another' WHERE id = ?1"
        await node.store.write(Script(Statement(sql, (segment.last_id,))))
        found = [each.problem for each in await node.oplog.verify(archive=target) if each.problem]
    assert any(segment.file_name in each and "differ" in each for each in found)
