"""`vox-mesh oplog archive`: what it lists, which lost files it names, and which segments it declares void."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import VoxCommand, running_node
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.model.oplog.deletion import DELETE
from vox_mesh.model.oplog.segment import ARCHIVE

_NOW = ("oplog", "archive", "--older-than", "0s")


@pytest.fixture
def archiver(vox: VoxCommand, tmp_path: Path) -> VoxCommand:
    """Commands with an archive, and a log with something in it."""
    with running_node(vox) as node:
        node.note("one")
    return vox.having(VOX_ARCHIVE_DIR=str(tmp_path / "archive"))


def test_the_list_names_the_op_and_the_node_of_each_segment(archiver: VoxCommand) -> None:
    made = [*archiver(*_NOW, "--json").document, *archiver(*_NOW, "--json").document]
    assert archiver("oplog", "archive", "--list", "--json").document == made
    ops = archiver("oplog", "tail", "--kind", ARCHIVE, "--json").document
    assert [(each["node_id"], each["op_id"]) for each in made] == [
        (each["node_id"], each["op_id"]) for each in ops
    ]
    columns = ["number", "entries", "last_id", "bytes", "node_id", "op_id", "file", "sha256"]
    assert archiver("oplog", "archive", "--list").out.splitlines()[0].split() == columns


def test_a_lost_file_is_named_and_its_segment_declared_void(archiver: VoxCommand, tmp_path: Path) -> None:
    made = [archiver(*_NOW, "--json").document[0] for _ in range(2)]
    refused = archiver("oplog", "archive", "--void", "1")
    assert refused.code != ExitCode.DONE
    assert "the archive has it as the log records it" in refused.err
    (tmp_path / "archive" / made[0]["file"]).unlink()
    third = archiver(*_NOW, "--json")
    assert third.document[0]["number"] == 3
    assert f"does not have segment 1 as the log records it: {made[0]['file']}" in third.err
    assert "vox-mesh oplog archive --void 1" in third.err
    assert archiver("oplog", "archive", "--void", "1", "--json").document == made[:1]
    again = archiver(*_NOW, "--json")
    assert (again.document[0]["number"], "does not have" in again.err) == (1, False)
    assert archiver("oplog", "verify", "--archive").code == ExitCode.DONE


def test_nothing_is_deleted_while_a_file_is_lost(archiver: VoxCommand, tmp_path: Path) -> None:
    deleting = (*_NOW, "--delete-older-than", "0s", "--json")
    (made,) = archiver(*deleting).document
    deletions = archiver("oplog", "tail", "--kind", DELETE, "--json").document
    assert len(deletions) == 1
    assert archiver(*_NOW).code == ExitCode.DONE
    (tmp_path / "archive" / made["file"]).unlink()
    refused = archiver(*deleting)
    assert refused.code != ExitCode.DONE
    assert refused.err.count(f"does not have segment 1 as the log records it: {made['file']}") == 1
    assert archiver("oplog", "tail", "--kind", DELETE, "--json").document == deletions
    numbers = [each["number"] for each in archiver("oplog", "archive", "--list", "--json").document]
    assert numbers == [1, 2, 3]  # archiving goes on
