"""Keys as they are typed: a path means that file, wherever it is typed, and a typo is not a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import VoxCommand
from tests.support.running.repositories import GIT_SETTINGS, new_repository
from vox_mesh.cli.locks.paths import keys_of
from vox_mesh.errors import BadValue
from vox_mesh.model.locks.patterns import normalise
from vox_mesh.settings import Settings, load_settings


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a few files."""
    root = (tmp_path / "repo").resolve()
    for folder in (".git", "src/deep"):
        (root / folder).mkdir(parents=True)
    for file in ("Makefile", "src/lib.rs", "src/deep/a b.txt"):
        (root / file).touch()
    return root


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The settings of a mesh outside the repository."""
    return load_settings(_env_file=None, enabled=True, home_dir=tmp_path / "mesh" / ".vox")


def key_of(text: str, settings: Settings) -> str:
    (key,) = keys_of([text], settings, literal=False)
    return normalise(key)


@pytest.mark.parametrize(
    ("folder", "text", "key"),
    [
        (".", "src/lib.rs", "file:src/lib.rs"),
        (".", "./src//lib.rs", "file:src/lib.rs"),
        (".", "Makefile", "file:Makefile"),
        (".", "not/yet.rs", "file:not/yet.rs"),
        (".", "src", "file:src/**"),
        (".", "new/", "file:new/**"),
        (".", "file:src/", "file:src/**"),
        (".", ".", "file:**"),
        (".", "src/*.rs", "file:src/*.rs"),
        ("src", "lib.rs", "file:src/lib.rs"),
        ("src", "../Makefile", "file:Makefile"),
        ("src", "deep/a b.txt", "file:src/deep/a b.txt"),
        ("src", ".", "file:src/**"),
        ("src", "**/*.txt", "file:src/**/*.txt"),
        ("src", "file:Makefile", "file:Makefile"),
        ("", "file:src", "file:src/**"),
        ("src", "file:src", "file:src/**"),
        ("src", "file:src/lib.rs", "file:src/lib.rs"),
        ("src", "task:lib.rs: the rest", "task:lib.rs: the rest"),
        ("src", "mesh:sweep", "mesh:sweep"),
    ],
)
def test_a_path_means_that_file_in_any_folder(
    folder: str, text: str, key: str, repository: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository / folder)
    assert key_of(text, settings) == key
    assert keys_of([text], settings, literal=True) == (text,)
    absolute = str(repository / folder / text)
    if ":" not in text and not text.endswith(("/", ".")):
        assert key_of(absolute, settings) == key


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("File:src/lib.rs", "'file:src/lib.rs'"),
        ("TASK:42", "'task:42'"),
        (" file:src/lib.rs", "'file:src/lib.rs'"),
        ("file: src/lib.rs", "'file:src/lib.rs'"),
        ("file :src/lib.rs ", "'file:src/lib.rs'"),
        ("src/lib.rs ", "'src/lib.rs'"),
        ("path:src/lib.rs", "'file:src/lib.rs'"),
        ("fiel:src/lib.rs", "'file:src/lib.rs'"),
        ("Tasks: 42", "'task:42'"),
        ("deploy:prod", "'task:deploy:prod', or 'file:deploy:prod'"),
        ("release", "'file:release' for a path, or 'task:release'"),
        ("file:lib.rs", "'file:src/lib.rs'"),
        ("file:{root}/src/lib.rs", "'file:src/lib.rs'"),
        ("/etc/passwd", "a path in it"),
        ("../../outside", "a path in it"),
        ("file:a\nb", "control"),
    ],
)
def test_a_misspelt_key_is_refused_with_the_right_spelling(
    text: str, right: str, repository: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository / "src")
    with pytest.raises(BadValue) as refused:
        keys_of([text.format(root=repository)], settings, literal=False)
    assert right in (refused.value.hint or "")
    assert refused.value.line.isprintable()


def test_outside_a_repository_paths_are_relative_to_the_folder_of_the_mesh(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, key in (("mesh/src", "file:src/a.txt"), ("elsewhere", "file:a.txt")):
        (tmp_path / folder).mkdir(parents=True)
        monkeypatch.chdir(tmp_path / folder)
        assert key_of("a.txt", settings) == key


def test_commands_in_any_folder_mean_the_same_lock(tmp_path: Path) -> None:
    root = tmp_path / "repo"
    home = {"VOX_MESH_HOME": str(root / ".vox"), "VOX_DB_PATH": str(root / ".vox/cache/db/local.db")}
    vox = VoxCommand(root, VOX_MESH_ENABLED="1", VOX_AGENT_ID="coder", **home, **GIT_SETTINGS)
    new_repository(root, vox.environment)
    (root / "src").mkdir()
    (root / "src/lib.rs").touch()
    below = VoxCommand(root / "src", **vox.variables)
    held = below("lock", "acquire", "lib.rs", "--json").document
    assert held["lock_key"] == "file:src/lib.rs"
    token = str(held["fence_token"])
    assert vox("lock", "acquire", "src/", "--agent", "tester").code == 1
    assert vox("guard", "check", "src", "--agent", "tester").code == 1
    assert vox("lock", "renew", "src/lib.rs", "--token", token).code == 0
    assert below("lock", "release", "./lib.rs", "--token", token).code == 0
    assert vox("lock", "run", "src", "--", "true").code == 0
    wrong = below("lock", "acquire", "file:lib.rs")
    assert (wrong.code, "write 'file:src/lib.rs'" in wrong.error) == (2, True)
    assert below("lock", "acquire", "release", "--literal", "--json").document["lock_key"] == "release"
    assert below("lock", "break", "release", "--literal", "--reason", "over").code == 0
