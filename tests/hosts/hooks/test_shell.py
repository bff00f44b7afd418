"""Command lines: commits are found however they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from vox_mesh.hosts.hooks.shell import Commit, commits_in, folder_of

HERE: Final = Path("/p")
_ELSEWHERE: Final = Commit(HERE, False, (), {"GIT_DIR": "/r/.git", "GIT_WORK_TREE": "/r"})


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("git commit -m 'a change'", Commit(HERE)),
        ("git commit", Commit(HERE)),
        ("'git' \"commit\" -m x", Commit(HERE)),
        ("g\\it comm'it' -m x", Commit(HERE)),
        ("/usr/bin/git commit -m x", Commit(HERE)),
        ("git -C sub commit -m x", Commit(HERE / "sub")),
        ("git -C sub -C deep -c user.name=x --no-pager commit", Commit(HERE / "sub" / "deep")),
        ("cd sub && git commit -am 'x y'", Commit(HERE / "sub", is_all=True)),
        ("cd 'a b'; git commit --all", Commit(HERE / "a b", is_all=True)),
        ("cd /q\ngit commit -qam x", Commit(Path("/q"), is_all=True)),
        ("(cd sub && git commit -m x)", Commit(HERE / "sub")),
        ("git add . && git commit -m x", Commit(HERE)),
        ("git add .&&git commit -m x", Commit(HERE)),
        ("if true; then git commit -m x; fi", Commit(HERE)),
        ("sudo -u x env A=1 git commit -m x", Commit(HERE)),
        ("time git commit", Commit(HERE)),
        ("bash -lc 'cd sub && git commit -m x'", Commit(HERE / "sub")),
        ('sh -c "git commit -am x"', Commit(HERE, is_all=True)),
        ("eval 'git commit -m x'", Commit(HERE)),
        ("git commit -m x > /dev/null 2>&1", Commit(HERE)),
        ("git commit -m x 2> err -- a.py b.py", Commit(HERE, pathspecs=("a.py", "b.py"))),
        ("git commit a.py -m 'a b' --author me", Commit(HERE, pathspecs=("a.py",))),
        ("git commit -m 'all -a --all'", Commit(HERE)),
        ("git commit -ma", Commit(HERE)),
        ("git commit \\\n  -a", Commit(HERE, is_all=True)),
        ("git --git-dir=/r/.git --work-tree /r commit", _ELSEWHERE),
        ("GIT_INDEX_FILE=/tmp/i git commit", Commit(HERE, False, (), {"GIT_INDEX_FILE": "/tmp/i"})),
        ("export GIT_DIR=/r/.git; git commit", Commit(HERE, False, (), {"GIT_DIR": "/r/.git"})),
        ("x=`git commit -m x`", Commit(HERE, is_all=True)),
        ("echo a | xargs git commit -m", Commit(HERE, is_all=True)),
        ("git commit -m 'it", Commit(HERE, is_all=True)),
    ],
)
def test_a_commit_is_found_with_its_folder(command: str, expected: Commit) -> None:
    assert commits_in(command, HERE) == [expected]


@pytest.mark.parametrize(
    "command",
    [
        *(
            "",
            "ls",
            "git status",
            "git log --grep=commit",
            "echo git commit",
            "git commit-tree x",
            "git-commits",
        ),
        *("git show commit", "grep -r 'git commit' .", "cd commit && git status"),
    ],
)
def test_what_makes_no_commit_is_left_alone(command: str) -> None:
    assert commits_in(command, HERE) == []


def test_all_commits_of_a_line_are_found() -> None:
    found = commits_in("git commit -m a; cd x && git commit -m b", HERE)
    assert found == [Commit(HERE), Commit(HERE / "x")]
    assert len(commits_in("git commit;" * 1_000, HERE)) < 10


def test_the_folder_of_a_patch_in_a_command_line_is_found() -> None:
    assert folder_of("cd sub && apply_patch <<'EOF'\n*** Begin 'Patch\nEOF", HERE) == HERE / "sub"
    assert folder_of("cd 'sub", HERE) == HERE
