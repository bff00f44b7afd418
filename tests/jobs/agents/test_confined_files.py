"""Files of an agent: nothing outside of its folder is read or written through its worker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vox_mesh.jobs.agents.confined_files import MAX_TEXT_BYTES, ConfinedFiles, OutsideFolder


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A work folder, next to a secret."""
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def test_files_of_the_folder_are_read_and_written(work: Path) -> None:
    files = ConfinedFiles(work)
    files.write(str(work / "a" / "b.txt"), "one\ntwo\nthree\n")
    assert files.read("a/b.txt") == "one\ntwo\nthree\n"
    assert files.read("a/b.txt", line=2, limit=1) == "two\n"
    files.write("a/b.txt", "short")
    assert (work / "a" / "b.txt").read_text() == "short"


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "a/../../secret",
        "/etc/passwd",
        "",
        ".",
        "..",
        "out",
        "out/secret",
        "loop",
        ".git/config",
        "a\0b",
    ],
)
def test_no_path_leads_out_of_the_folder(work: Path, path: str) -> None:
    (work / "out").symlink_to(work.parent)
    (work / "loop").symlink_to(work.parent / "secret")
    files = ConfinedFiles(work)
    with pytest.raises(OutsideFolder):
        files.read(path)
    with pytest.raises(OutsideFolder):
        files.write(path, "changed")
    assert (work.parent / "secret").read_text() == "secret"
    assert not (work / ".git").exists()


def test_a_folder_with_the_same_beginning_is_another_one(work: Path) -> None:
    other = work.with_name("work-of-another")
    other.mkdir()
    with pytest.raises(OutsideFolder):
        ConfinedFiles(work).write(str(other / "file"), "changed")


def test_a_second_name_of_a_file_elsewhere_is_not_written(work: Path) -> None:
    os.link(work.parent / "secret", work / "linked")
    with pytest.raises(OutsideFolder, match="another name"):
        ConfinedFiles(work).write("linked", "changed")
    assert (work.parent / "secret").read_text() == "secret"


def test_what_is_no_file_blocks_nothing(work: Path) -> None:
    os.mkfifo(work / "pipe")
    (work / "folder").mkdir()
    for path in ("pipe", "folder"):
        with pytest.raises(OutsideFolder):
            ConfinedFiles(work).read(path)
        with pytest.raises(OutsideFolder):
            ConfinedFiles(work).write(path, "text")


def test_files_that_are_too_large_are_refused(work: Path) -> None:
    files = ConfinedFiles(work)
    (work / "large").write_bytes(b"x" * (MAX_TEXT_BYTES + 1))
    with pytest.raises(OutsideFolder, match="at most"):
        files.read("large")
    with pytest.raises(OutsideFolder, match="at most"):
        files.write("new", "x" * (MAX_TEXT_BYTES + 1))
    assert not (work / "new").exists()
