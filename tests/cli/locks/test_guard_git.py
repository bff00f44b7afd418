"""What is asked of git, and how the guard's hook comes and goes."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

import pytest

from tests.support.running.repositories import GIT_SETTINGS, Repository, new_repository
from vox_mesh.cli.locks import git
from vox_mesh.cli.locks.git import NAME, HookInTheWay, WorkTree, install_hook, kept_name, uninstall_hook
from vox_mesh.errors import BadSettings, BadValue

KEPT: Final = kept_name(NAME)
_ODD_NAMES: Final = (
    *("with space", "two  spaces", "caf\u00e9", "日本", '"quoted"', "it's", "-n", "--staged", "a*b", "a?b"),
    *("[ab]", "back\\slash", "tab\there", "new\nline", " ", "#", ":(top)x", "{a,b}", "$HOME"),
)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """An empty repository, and we are in it."""
    for name in os.environ:
        if name.startswith("GIT_"):
            monkeypatch.delenv(name)
    for name, value in GIT_SETTINGS.items():
        monkeypatch.setenv(name, value)
    repository = new_repository(tmp_path / "a repository")
    monkeypatch.chdir(repository.folder)
    return repository


def staged() -> list[str]:
    return sorted(WorkTree.here().staged())


# --- what would be committed ---------------------------------------------------------------------


def test_in_the_first_commit_everything_staged_counts_and_nothing_else(repository: Repository) -> None:
    assert staged() == []
    repository.write("not staged")
    repository.stage("a", "b/c")
    repository.git("add", "--intent-to-add", "not staged")
    assert staged() == ["a", "b/c"]


@pytest.mark.parametrize("quotepath", ["true", "false"])
def test_every_name_comes_unchanged(repository: Repository, quotepath: str) -> None:
    repository.git("config", "core.quotepath", quotepath)
    repository.stage(*_ODD_NAMES)
    assert staged() == sorted(_ODD_NAMES)


def test_a_name_that_is_not_unicode_comes_as_the_file_system_has_it(repository: Repository) -> None:
    odd = os.fsdecode(b"caf\xe9")
    blob = repository.git("hash-object", "-w", "--stdin").strip()
    repository.git(
        "update-index", "--add", "--cacheinfo", f"100644,{blob},{odd}"
    )  # no file: not all allow it
    assert staged() == [odd]


def test_of_a_rename_both_names_count_and_deletions_and_modes_too(repository: Repository) -> None:
    repository.settle("old", "gone", "run", "same")
    for setting in ("diff.renames", "diff.relative", "diff.noprefix"):
        repository.git("config", setting, "true")
    repository.git("mv", "old", "new name")
    repository.git("rm", "--quiet", "gone")
    repository.git("update-index", "--chmod=+x", "run")
    assert staged() == ["gone", "new name", "old", "run"]


def test_a_staged_submodule_counts_even_if_git_is_asked_to_ignore_it(repository: Repository) -> None:
    repository.settle("a")
    commit = repository.git("rev-parse", "HEAD").strip()
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{commit},module")
    repository.git("commit", "--quiet", "--message", "a module")
    repository.stage("b")
    repository.settle("b")
    repository.git("config", "diff.ignoreSubmodules", "all")
    repository.git(
        "update-index", "--cacheinfo", f"160000,{repository.git('rev-parse', 'HEAD').strip()},module"
    )
    assert staged() == ["module"]


def test_from_a_subfolder_all_of_the_repository_counts(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.git("config", "diff.relative", "true")
    repository.stage("a", "sub/b")
    monkeypatch.chdir("sub")
    assert staged() == ["a", "sub/b"]


def test_where_there_is_no_work_tree_git_says_why(
    tmp_path: Path, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.resolve()))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadSettings, match="not a git repository"):
        WorkTree.here()
    monkeypatch.chdir(repository.folder / ".git")
    with pytest.raises(BadSettings, match="work tree"):
        WorkTree.here()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadSettings, match="git not found"):
        WorkTree.here()


# --- paths from here -----------------------------------------------------------------------------


def test_a_path_from_here_becomes_one_from_the_root(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    repository.write("sub/deep/file", "top")
    (repository.folder / "link").symlink_to("sub")
    (repository.folder / "sub/to top").symlink_to("../top")
    (tmp_path / "way in").symlink_to(repository.folder)
    monkeypatch.chdir(tmp_path / "way in" / "sub")
    tree = WorkTree.here()
    expected = {
        "deep/file": "sub/deep/file",
        "./deep//file": "sub/deep/file",
        "deep/../../top": "top",
        "../top": "top",
        "not/there/yet": "sub/not/there/yet",
        "*": "sub/*",
        "deep": "sub/deep/",
        "deep/": "sub/deep/",
        ".": "sub/",
        "..": "./",
        "../link": "link",
        "../link/deep/file": "sub/deep/file",
        "to top": "sub/to top",
        str(repository.folder / "top"): "top",
        str(tmp_path / "way in" / "top"): "top",
    }
    assert {given: tree.path_of(given) for given in expected} == expected


@pytest.mark.parametrize("outside", ["..", "../elsewhere", "/", "/etc/hosts", ""])
def test_a_path_outside_the_repository_is_refused(repository: Repository, outside: str) -> None:
    with pytest.raises(BadValue, match="must be in the repository"):
        WorkTree.here().path_of(outside)


def test_the_hooks_are_where_git_looks_for_them(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.settle("sub/file")
    own = repository.folder.resolve() / ".git/hooks"
    repository.git("worktree", "add", "--quiet", "-b", "linked", str(tmp_path / "linked tree"))
    for here in (repository.folder / "sub", tmp_path / "linked tree" / "sub"):
        monkeypatch.chdir(here)
        root = WorkTree.here().root
        assert WorkTree.here().hooks.resolve() == own
        for path, hooks in (("ours", root / "ours"), (str(tmp_path / "all"), tmp_path / "all")):
            repository.git("config", "core.hooksPath", path)
            assert WorkTree.here().hooks == hooks
        repository.git("config", "--unset", "core.hooksPath")


# --- the hook ------------------------------------------------------------------------------------


def installed(hooks: Path, *, force: bool = False, **environment: str) -> str:
    """Install the hook; its text."""
    return install_hook(hooks, Path.cwd(), environment, force=force, require_lock=False).read_text()


def foreign(hooks: Path, text: str = "#!/bin/sh\n", mode: int = 0o755) -> Path:
    hooks.mkdir(exist_ok=True)
    hook = hooks / NAME
    hook.write_text(text)
    hook.chmod(mode)
    return hook


def test_installing_again_changes_nothing_and_leaves_nothing_else(tmp_path: Path) -> None:
    hooks = tmp_path / "not there yet"
    first = installed(hooks)
    assert installed(hooks) == first == installed(hooks, force=True)
    assert [path.name for path in hooks.iterdir()] == [NAME]
    assert stat.S_IMODE((hooks / NAME).stat().st_mode) == 0o755
    assert uninstall_hook(hooks)
    assert [*hooks.iterdir()] == []
    assert not uninstall_hook(hooks)


def test_a_foreign_hook_is_not_touched(tmp_path: Path) -> None:
    hook = foreign(tmp_path, "mine")
    with pytest.raises(HookInTheWay) as refused:
        installed(tmp_path)
    assert "--force" in refused.value.line
    assert not uninstall_hook(tmp_path)
    assert hook.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize("mode", [0o755, 0o700, 0o644])
def test_a_foreign_hook_is_kept_by_force_and_comes_back_as_it_was(tmp_path: Path, mode: int) -> None:
    hook = foreign(tmp_path, "mine", mode)
    first = installed(tmp_path, force=True)
    assert (tmp_path / KEPT).read_text() == "mine"
    assert installed(tmp_path) == first  # the one that is kept is still called
    assert uninstall_hook(tmp_path)
    assert (hook.read_text(), stat.S_IMODE(hook.stat().st_mode)) == ("mine", mode)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize("target", ["script", "nowhere"])
def test_a_hook_that_is_a_link_is_kept_as_a_link(tmp_path: Path, target: str) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n")
    (tmp_path / NAME).symlink_to(target)
    installed(tmp_path, force=True)
    assert (tmp_path / "script").read_text() == "#!/bin/sh\n"
    assert uninstall_hook(tmp_path)
    assert (tmp_path / NAME).readlink() == Path(target)


def test_nothing_that_was_kept_before_is_overwritten(tmp_path: Path) -> None:
    hook = foreign(tmp_path, "mine")
    (tmp_path / KEPT).write_text("something else")
    with pytest.raises(HookInTheWay, match="other content"):
        installed(tmp_path, force=True)
    assert (hook.read_text(), (tmp_path / KEPT).read_text()) == ("mine", "something else")


def test_an_installation_that_was_cut_short_can_be_finished(tmp_path: Path) -> None:
    foreign(tmp_path, "mine")
    (tmp_path / KEPT).write_text("mine")
    assert git._call_kept(NAME) in installed(tmp_path, force=True)


def test_a_local_hook_of_anothers_is_not_called_and_not_moved(tmp_path: Path) -> None:
    (tmp_path / KEPT).write_text("for another purpose")
    assert KEPT not in installed(tmp_path)
    assert uninstall_hook(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [KEPT]


def test_the_hook_knows_the_mesh_but_no_secret(tmp_path: Path) -> None:
    text = installed(
        tmp_path,
        VOX_DB_URL="libsql://it's.example.org",
        VOX_DB_TOKEN="secret",
        VOX_MESH_TOKEN="a-secret-that-no-hook-may-keep",
        TURSO_AUTH_TOKEN="secret",
        VOX_AGENT_ID="planner",
    )
    assert """VOX_DB_URL='libsql://it'"'"'s.example.org'""" in text
    assert "secret" not in text
    assert "planner" not in text


def test_hooks_that_cannot_be_written_are_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HookInTheWay, match="can't be changed"):
        installed(tmp_path / "file" / "hooks")
