"""Configuration files are replaced as a whole, keep their mode, and stay where they belong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vox_mesh.hosts.setup.config_file import ConfigFile
from vox_mesh.hosts.setup.documents.errors import DocumentRefused


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project, next to what is not part of it."""
    (tmp_path / "secret").write_text("{}")
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def test_a_file_and_the_folders_made_for_it_are_gone_after_its_removal(project: Path) -> None:
    file = ConfigFile(project, project / ".github" / "hooks" / "vox-mesh.json")
    assert file.read() is None
    file.write("{}", None)
    assert file.read() == "{}"
    file.remove("{}")
    assert list(project.iterdir()) == []


def test_a_folder_with_files_of_others_stays(project: Path) -> None:
    file = ConfigFile(project, project / ".claude" / "settings.local.json")
    file.write("{}", None)
    (project / ".claude" / "other").touch()
    file.remove("{}")
    assert [each.name for each in (project / ".claude").iterdir()] == ["other"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_file_keeps_its_mode(project: Path, mode: int) -> None:
    path = project / "settings.json"
    path.write_text("{}")
    path.chmod(mode)
    ConfigFile(project, path).write('{"a": 1}', "{}")
    assert path.stat().st_mode & 0o777 == mode
    assert path.read_text() == '{"a": 1}'
    assert [each.name for each in project.iterdir()] == ["settings.json"]


def test_a_repository_can_not_direct_a_write_to_another_place(project: Path) -> None:
    outside = project.parent / "secret"
    (project / "file.json").symlink_to(outside)
    (project / "folder").symlink_to(project.parent)
    (project / "dangling.json").symlink_to(project.parent / "new.json")
    for name in ("file.json", "folder/secret", "folder/new.json", "dangling.json"):
        file = ConfigFile(project, project / name)
        with pytest.raises(DocumentRefused, match="must be in"):
            file.read()
        with pytest.raises(DocumentRefused, match="must be in"):
            file.write("{}", None)
        with pytest.raises(DocumentRefused, match="must be in"):
            file.remove("{}")
    assert outside.read_text() == "{}"
    assert not (project.parent / "new.json").exists()


def test_a_link_that_loops_is_refused(project: Path) -> None:
    (project / "loop").symlink_to("loop")
    with pytest.raises(DocumentRefused):
        ConfigFile(project, project / "loop").read()


def test_links_of_the_user_are_followed(project: Path) -> None:
    (project / "settings.json").symlink_to(project.parent / "secret")
    file = ConfigFile(project, project / "settings.json", follows_all=True)
    file.write('{"a": 1}', file.read())
    assert (project / "settings.json").is_symlink()
    assert (project.parent / "secret").read_text() == '{"a": 1}'


def test_a_file_that_was_changed_meanwhile_is_not_replaced(project: Path) -> None:
    path = project / "settings.json"
    path.write_text("{}")
    with pytest.raises(DocumentRefused, match="changed meanwhile"):
        ConfigFile(project, path).write("{}", '{"a": 1}')
    assert [each.name for each in project.iterdir()] == ["settings.json"]


def test_what_is_no_text_file_is_refused(project: Path) -> None:
    (project / "folder").mkdir()
    os.mkfifo(project / "pipe")
    (project / "latin").write_bytes(b'{"a": "\xe9"}')
    (project / "large").write_bytes(b" " * ((1 << 20) + 1))
    for name in ("folder", "pipe", "latin", "large"):
        with pytest.raises(DocumentRefused):
            ConfigFile(project, project / name).read()
