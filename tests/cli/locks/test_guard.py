"""`vox-mesh guard`, as git runs it: in real repositories, with real locks."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.conftest import VoxCommand
from tests.cli.terminals import terminal
from tests.support.running.repositories import GIT_SETTINGS, Repository, new_repository
from tools.sqld import Server, free_port
from vox_mesh import Mesh, Settings, load_settings

_LONG_S: Final = 3_600.0


class GuardedRepository:
    """A repository with the file home in its root, and agents that hold paths of it."""

    def __init__(self, folder: Path) -> None:
        self.vox = VoxCommand(folder, VOX_MESH_ENABLED="1", **GIT_SETTINGS)
        self.repository = new_repository(folder, self.vox.environment)
        (folder / ".git/info/exclude").write_text("/.vox\n/.env\n")

    @property
    def settings(self) -> Settings:
        folder = self.repository.folder
        return load_settings(
            _env_file=None, enabled=True, home_dir=folder / ".vox", db_path=folder / ".vox/cache/db/local.db"
        )

    def hold(self, *keys: str, agent: str = "rival", shared: bool = False, node: str = "far-away") -> None:
        """Have an agent on another node hold these keys for as long as the test needs."""

        async def taken() -> None:
            async with Mesh.open_command(self.settings.model_copy(update={"node_id": node})) as mesh:
                await mesh.locks.acquire(keys, agent=agent, shared=shared, ttl=_LONG_S)

        asyncio.run(taken())

    def install(self, *options: str) -> None:
        ended = self.vox("guard", "install", *options)
        assert ended.code == 0, ended


@pytest.fixture
def scene(tmp_path: Path) -> GuardedRepository:
    """An empty repository, in a folder whose name a shell could stumble over."""
    return GuardedRepository(tmp_path / 'it\'s a "$folder" é')


@pytest.fixture
def guarded(scene: GuardedRepository) -> GuardedRepository:
    """A guarded repository with `src/lib.rs` and `notes.txt` in it."""
    scene.repository.settle("src/lib.rs", "notes.txt")
    scene.install()
    return scene


def paths_in(document: Any) -> list[tuple[str, Any]]:
    return [(each["path"], each["lock_key"]) for each in document]


# --- commits -------------------------------------------------------------------------------------


def test_a_commit_of_what_another_agent_holds_is_refused_and_says_who_and_what_to_do(
    guarded: GuardedRepository,
) -> None:
    repository = guarded.repository
    guarded.hold("file:src/**")
    repository.stage("src/lib.rs", text="changed")
    refused = repository.commit()
    assert refused.returncode != 0
    assert repository.commits == 1
    (line,) = [line for line in refused.stderr.splitlines() if line.startswith("src/lib.rs ")]
    assert line.split()[1:5] == ["file:src/**", "rival", "far-away", "exclusive"]
    assert refused.stderr.count(" s ") >= 1  # its age, and the time left
    assert "1 path is held by other agents; unstage them, wait" in refused.stderr
    assert (
        repository.having(VOX_AGENT_ID="rival").commit().returncode == 0
    )  # from a node that is not far away
    assert repository.commits == 2


def test_what_is_in_the_commit_counts_and_not_what_is_in_the_working_directory(
    guarded: GuardedRepository,
) -> None:
    repository = guarded.repository
    guarded.hold("file:src/lib.rs")
    repository.write("src/lib.rs", text="changed, and not staged")
    repository.stage("notes.txt", text="1")
    assert repository.commit().returncode == 0
    assert "src/lib.rs" in repository.commit("--all").stderr
    repository.git("add", "src/lib.rs")
    repository.write("notes.txt", text="2")
    assert repository.commit("--", "notes.txt").returncode == 0  # though the other one is staged
    repository.write("notes.txt", text="3")
    assert repository.commit("--include", "--", "notes.txt").returncode != 0
    assert repository.commits == 3


def test_the_first_commit_is_guarded_too(scene: GuardedRepository) -> None:
    scene.install()
    scene.hold("file:*.txt", shared=True)
    scene.repository.stage("a.txt")
    refused = scene.repository.commit()
    assert (refused.returncode, scene.repository.commits) == (1, 0)
    assert " shared " in refused.stderr  # a reader does not want it changed either


def test_renames_deletions_and_odd_names_are_seen_by_both_names(guarded: GuardedRepository) -> None:
    repository = guarded.repository
    repository.git("config", "core.quotepath", "true")
    repository.settle("old é.txt", 'gone "q".txt', "mode", "moved")
    guarded.hold("file:old é.txt", 'file:gone "q".txt', "file:日本/* *.txt", "file:a*b")
    repository.git("mv", "old é.txt", "free name.txt")
    repository.git("rm", "--quiet", 'gone "q".txt')
    (repository.folder / "日本").mkdir()
    repository.git("mv", "moved", "日本/nun  da.txt")
    repository.stage("a*b", "-a?b", "axb.c")
    ascii_only = guarded.vox.having(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    found = ascii_only("guard", "check", "--staged", "--json")
    assert found.code == 1
    assert sorted(paths_in(found.document)) == [
        ("a*b", "file:a*b"),
        ('gone "q".txt', 'file:gone "q".txt'),
        ("old é.txt", "file:old é.txt"),
        ("日本/nun  da.txt", "file:日本/* *.txt"),
    ]
    assert len(ascii_only("guard", "check", "old é.txt", "日本", "--json").document) == 2
    assert repository.commit().returncode == 1


def test_a_linked_work_tree_is_guarded_with_the_settings_of_where_it_was_installed(
    guarded: GuardedRepository, tmp_path: Path
) -> None:
    guarded.hold("file:src/lib.rs")
    linked = tmp_path / "linked tree"
    guarded.repository.git("worktree", "add", "--quiet", "-b", "linked", str(linked))
    tree = guarded.repository.at(linked)
    tree.stage("src/lib.rs", text="changed")
    refused = tree.at(linked / "src").commit()
    assert (refused.returncode, "file:src/lib.rs" in refused.stderr) == (1, True)
    assert not (linked / ".vox").exists()
    tree.git("reset", "--quiet", "--hard")
    tree.stage("notes.txt", text="changed")
    assert tree.commit().returncode == 0


def test_the_hook_goes_where_git_looks_for_it_even_from_a_subfolder(scene: GuardedRepository) -> None:
    repository, folder = scene.repository, scene.repository.folder
    repository.git("config", "core.hooksPath", "hooks of ours")
    repository.settle("sub/file")
    (folder / "sub/.env").write_text(
        "VOX_MESH_ENABLED=1\nVOX_MESH_HOME=../.vox\nVOX_DB_PATH=../.vox/cache/db/local.db\n"
    )
    at_sub = VoxCommand(folder / "sub", **GIT_SETTINGS)
    assert at_sub("guard", "install").code == 2  # what is in a folder counts only with the user's approval
    assert at_sub("trust").code == 0
    record = at_sub("guard", "install", "--json").document
    assert Path(record["hook"]) == folder / "hooks of ours/pre-commit"
    scene.hold("file:sub/file")
    repository.stage("sub/file", text="changed")
    plain = Repository(folder / "sub", at_sub.environment)  # all that it knows is what the hook brings along
    assert "file:sub/file" in plain.commit().stderr
    assert at_sub("guard", "uninstall").code == 0
    assert plain.commit().returncode == 0


def test_what_lies_in_the_repository_is_not_run(guarded: GuardedRepository) -> None:
    for module in ("click", "asyncio", "orjson", "vox_mesh"):
        guarded.repository.stage(f"{module}.py", text="raise SystemExit('taken over')\n")
    done = guarded.repository.commit()
    assert (done.returncode, done.stderr) == (0, "")


# --- with a lock of one's own ---------------------------------------------------------------------


def test_with_require_lock_only_what_the_agent_has_locked_is_committed(guarded: GuardedRepository) -> None:
    guarded.install("--require-lock")
    coder = guarded.repository.having(VOX_AGENT_ID="coder")
    coder.stage("src/lib.rs", "notes.txt", text="changed")
    guarded.hold("file:src/lib.rs", agent="coder")
    guarded.hold("file:*.txt", agent="coder", shared=True)
    refused = coder.commit()
    assert (refused.returncode, coder.commits) == (1, 1)
    line = (
        "1 path is not locked by coder; acquire the lock first: vox-mesh lock acquire file:notes.txt --agent"
    )
    assert line in refused.stderr
    assert "VOX_GUARD" not in refused.stderr
    coder.git("reset", "--quiet", "notes.txt")
    assert coder.commit().returncode == 0
    coder.stage("src/lib.rs", text="by no agent")
    assert "no agent given" in guarded.repository.commit().stderr
    guarded.install()
    assert guarded.repository.having(VOX_AGENT_ID="coder").commit().returncode == 0


def test_before_an_edit_a_lock_can_be_required(guarded: GuardedRepository) -> None:
    check = ("guard", "check", "--require-lock", "--agent", "coder", "--json")
    guarded.hold("file:src/**", agent="coder")
    assert guarded.vox(*check, "src/lib.rs", "src", "src/new/deep.rs").document == []
    found = guarded.vox(*check, "src", "notes.txt", ".")
    assert (found.code, paths_in(found.document)) == (1, [("notes.txt", None), ("./", None)])
    assert guarded.vox("guard", "check", "notes.txt", "--agent", "coder").code == 0
    rivals = guarded.vox("guard", "check", "--require-lock", "--agent", "rival", "src/lib.rs", "--json")
    assert paths_in(rivals.document) == [("src/lib.rs", "file:src/**"), ("src/lib.rs", None)]
    no_one = guarded.vox("guard", "check", "--require-lock", "src/lib.rs")
    assert (no_one.code, "no agent given" in no_one.error) == (2, True)


def test_only_a_person_at_a_terminal_learns_how_to_skip_the_check(guarded: GuardedRepository) -> None:
    guarded.hold("file:notes.txt")
    for options in ((), ("--require-lock", "--agent", "me")):
        arguments = ("guard", "check", *options, "notes.txt" if not options else "src/lib.rs")
        assert "VOX_GUARD" not in guarded.vox(*arguments).err
        with terminal(guarded.vox, *arguments) as shown:
            assert shown.ended() == 1
            assert b"VOX_GUARD=off skips the check" in b"".join(shown.shown.splitlines())


# --- when it can't be checked --------------------------------------------------------------------


def test_what_cannot_be_checked_is_said_and_not_committed_unless_that_is_wished(
    guarded: GuardedRepository,
) -> None:
    away = {"VOX_DB_URL": f"http://127.0.0.1:{free_port()}", "VOX_DB_DEADLINE": "1s"}
    repository = guarded.repository.having(**away)
    repository.stage("notes.txt", text="1")
    refused = repository.commit()
    assert refused.returncode != 0
    assert refused.stderr.startswith("vox-mesh: locks not checked: ")
    assert "VOX_GUARD" not in refused.stderr, "an agent should not skip the check"
    checked = guarded.vox.having(**away)("guard", "check", "notes.txt", "--json")
    assert (checked.code, checked.out, checked.err.count("\n")) == (3, "", 1)
    assert repository.commits == 1
    lenient = repository.having(VOX_GUARD="lenient").commit()
    assert (lenient.returncode, repository.commits) == (0, 2)
    assert lenient.stderr.startswith("vox-mesh: warning: locks not checked: ")


def test_a_server_that_lets_no_one_in_is_no_answer_either(
    guarded: GuardedRepository, shared_server: Server
) -> None:
    checked = guarded.vox.at(shared_server, token="wrong")("guard", "check", "notes.txt")
    assert (checked.code, checked.out) == (3, "")
    assert checked.err.startswith("vox-mesh: locks not checked: ")


def test_the_guard_can_be_turned_off_with_a_warning_and_nothing_else_is_needed_then(
    guarded: GuardedRepository,
) -> None:
    guarded.hold("file:**")
    off = guarded.repository.having(VOX_GUARD="off", VOX_MESH_ENABLED="nonsense")
    off.stage("notes.txt", text="1")
    done = off.commit()
    assert (done.returncode, off.commits) == (0, 2)
    assert done.stderr.startswith("vox-mesh: warning: locks not checked: VOX_GUARD=off")
    checked = guarded.vox.having(VOX_GUARD="off")("guard", "check", "notes.txt", "--json")
    assert (checked.code, checked.document) == (0, [])
    assert "warning" in checked.err


def test_a_vox_mesh_that_is_gone_is_looked_for_on_the_path_and_otherwise_said(
    guarded: GuardedRepository, tmp_path: Path
) -> None:
    hook = guarded.repository.folder / ".git/hooks/pre-commit"
    text = re.sub(
        "^python=.*$", "python=/gone/python package=/gone folder=/", hook.read_text(), flags=re.MULTILINE
    )
    hook.write_text(text)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    git = shutil.which("git")
    assert git is not None
    (bin_folder / "git").symlink_to(git)
    repository = guarded.repository.having(PATH=str(bin_folder))
    repository.stage("notes.txt", text="1")
    refused = repository.commit()
    assert refused.returncode != 0
    assert (
        "/gone/python with vox-mesh not found; install it and run `vox-mesh guard install`" in refused.stderr
    )
    (bin_folder / "vox-mesh").write_text('#!/bin/sh\necho "found: $*" >&2\nexit 1\n')
    (bin_folder / "vox-mesh").chmod(0o755)
    assert "found: guard check --staged --settings-in /\n" in repository.commit().stderr
    (bin_folder / "vox-mesh").unlink()
    off = repository.having(VOX_GUARD="off").commit()
    assert (off.returncode, "locks not checked" in off.stderr) == (0, True)


# --- next to other hooks --------------------------------------------------------------------------


def test_a_hook_that_was_there_is_called_first_and_what_it_stages_is_checked(
    scene: GuardedRepository,
) -> None:
    repository = scene.repository
    repository.settle("held.txt", "free.txt")
    hook = repository.folder / ".git/hooks/pre-commit"
    own = "#!/bin/sh\n[ ! -e stop ] || exit 7\n[ ! -e more ] || { echo new > held.txt; git add held.txt; }\n"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(own)
    hook.chmod(0o755)
    refused = scene.vox("guard", "install")
    assert refused.code == 1
    assert "--force" in refused.error
    scene.install("--force")
    scene.hold("file:held.txt")
    repository.stage("free.txt", text="1")
    (repository.folder / "stop").touch()
    assert repository.commit().returncode != 0
    (repository.folder / "stop").rename(repository.folder / "more")
    assert "held.txt" in repository.commit().stderr
    (repository.folder / "more").unlink()
    repository.git("reset", "--quiet", "held.txt")
    assert repository.commit().returncode == 0
    assert scene.vox("guard", "uninstall", "--json").document["was_installed"] is True
    assert hook.read_text() == own


# --- the question for other tools ----------------------------------------------------------------


def test_the_answer_for_other_tools_is_a_document_with_all_they_need(guarded: GuardedRepository) -> None:
    guarded.hold("file:src/*.rs", "task:x")
    guarded.hold("file:notes.txt", agent="me")
    vox = guarded.vox.having(VOX_AGENT_ID="me")
    found = vox("guard", "check", "notes.txt", "src", "src/new.rs", "--json")
    assert found.code == 1
    assert paths_in(found.document) == [("src/", "file:src/*.rs"), ("src/new.rs", "file:src/*.rs")]
    record = found.document[1]
    assert (record["holder_agent"], record["holder_node"], record["is_shared"]) == (
        "rival",
        "far-away",
        False,
    )
    assert record["fence_token"] >= 1
    assert record["acquired_at"] < record["expires_at"]
    below = VoxCommand(guarded.repository.folder / "src", **vox.variables)
    inside = below(
        "guard", "check", "lib.rs", "../notes.txt", "--settings-in", "..", "--agent", "rival", "--json"
    )
    assert paths_in(inside.document) == [("notes.txt", "file:notes.txt")]
    free = vox("guard", "check", "notes.txt", "--", "-n")
    assert (free.code, free.out, free.err) == (0, "", "")


def test_no_one_in_particular_is_the_node_and_many_holds_are_not_all_shown(
    guarded: GuardedRepository,
) -> None:
    guarded.hold("file:**", node="here", agent="here")
    names = [f"f{number:02}" for number in range(30)]
    assert guarded.vox.having(VOX_MESH_NODE_ID="here")("guard", "check", *names).code == 0
    other = guarded.vox.having(VOX_MESH_NODE_ID="there")("guard", "check", *names)
    assert (other.code, len(other.out.splitlines())) == (1, 21)
    assert "30 paths are held by other agents (first 20 locks shown, --json lists all 30)" in other.err


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (("check",), {}, "PATH"),
        (("check", "../outside"), {}, "must be in the repository"),
        (("check", "a"), {"VOX_GUARD": "no"}, "VOX_GUARD"),
        (("check", "a"), {"VOX_MESH_ENABLED": "0"}, "VOX_MESH_ENABLED=1"),
        (("check", "a", "--settings-in", "not there"), {}, "not there"),
        (("install",), {"VOX_MESH_ENABLED": "0"}, "VOX_MESH_ENABLED=1"),
        (("uninstall",), {"GIT_DIR": os.devnull}, "not a git repository"),
    ],
)
def test_wrong_usage_ends_with_2_and_one_line(
    scene: GuardedRepository, arguments: tuple[str, ...], variables: dict[str, str], said: str
) -> None:
    ended = scene.vox.having(**variables)("guard", *arguments)
    assert ended.code == 2
    assert said in ended.error
