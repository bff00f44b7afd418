"""`vox-mesh setup`: one command brings hosts onto the mesh, and takes all of it back."""

from __future__ import annotations

import json
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.conftest import Ended, VoxCommand
from tests.support.running.repositories import GIT_SETTINGS, Repository, new_repository
from vox_mesh.cli.hosts.background_node import is_node_running, stop_node
from vox_mesh.hosts.setup.host_paths import HOSTS

_GUARD_FILES: Final = ".git/hooks"


class Project:
    """A repository in which the command runs, for a user with a folder of his own."""

    def __init__(self, folder: Path, user: Path, **variables: str) -> None:
        self.folder = folder
        user.mkdir(exist_ok=True)
        found = {
            "HOME": str(user),
            "XDG_DATA_HOME": str(user / ".data"),
            "XDG_CONFIG_HOME": str(user / ".config"),
        }
        self.vox = VoxCommand(folder, **GIT_SETTINGS, **found, **variables)
        if not folder.exists():
            new_repository(folder, self.vox.environment).settle("src/app.py")

    def setup(self, *arguments: str) -> Ended:
        """Run it without starting a node."""
        return self.vox("setup", "--no-start", *arguments)

    def states(self, *arguments: str) -> dict[str, str]:
        """The state of each part by its name and place."""
        records = json.loads(self.setup("--json", *arguments).out)
        return {f"{each['part']}: {each['where']}": each["state"] for each in records}

    def files(self) -> dict[str, bytes]:
        """All files but those of the mesh and of git's own."""
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        names = {str(path.relative_to(self.folder)): path for path in paths}
        return {
            name: path.read_bytes()
            for name, path in names.items()
            if not name.startswith(".vox/")
            and (name.startswith(_GUARD_FILES) or not name.startswith(".git/"))
        }


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """An empty project; its node does not outlive the test."""
    made = Project(tmp_path / "project", tmp_path / "user")
    yield made
    stop_node(made.folder / ".vox")


def tokens(project: Project, agent: str) -> list[Any]:
    """The tokens of an agent that are in force."""
    found: list[Any] = project.vox("agents", "token", "list", agent, "--json").document
    return found


def test_setup_makes_everything_and_a_second_run_changes_nothing(project: Project) -> None:
    first = project.setup(*HOSTS)
    assert first.code == 0, first
    files = project.files()
    assert set(project.states(*HOSTS).values()) == {"unchanged", "missing"}, "only the node was not started"
    assert project.files() == files
    for host in HOSTS:
        token = project.folder / ".vox" / "agents" / f"{host}.token"
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert len(tokens(project, host)) == 1
        allowed = project.vox("grant", "check", host, "lock.acquire on file:src/app.py")
        assert allowed.code == 0, allowed
    ignored = subprocess.run(
        ["git", "check-ignore", ".vox/agents/claude.token"], cwd=project.folder, capture_output=True
    )
    assert ignored.returncode == 0


def test_a_file_that_can_not_be_edited_is_named_and_the_rest_is_done(project: Project) -> None:
    broken = project.folder / ".mcp.json"
    broken.write_text("{ not json")
    ended = project.setup("claude", "gemini")
    assert ended.code == 1
    assert "MCP server in .mcp.json: line 1" in ended.err
    assert broken.read_text() == "{ not json"
    assert (project.folder / ".gemini" / "settings.json").exists()
    broken.unlink()
    assert project.setup("claude", "gemini").code == 0
    assert "vox-mesh" in json.loads(broken.read_text())["mcpServers"]


def test_check_names_what_is_missing_and_writes_nothing(project: Project) -> None:
    before = project.files()
    ended = project.setup("--check", "claude")
    assert ended.code == 1
    assert "missing" in ended.out
    assert project.files() == before
    assert not (project.folder / ".vox").exists()


def test_remove_restores_every_file_and_revokes_the_tokens(project: Project) -> None:
    folder = project.folder
    (folder / "AGENTS.md").write_bytes(b"# Mine\r\nno newline at the end")
    (folder / ".mcp.json").write_text('{"mcpServers": {"other": {"command": "x"}}} // mine\n')
    (folder / ".codex").mkdir()
    (folder / ".codex" / "config.toml").write_text('model = "o"\n')
    hook = folder / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 0\n")
    hook.chmod(0o755)
    before = project.files()
    assert project.setup(*HOSTS, "--auto", "--strict").code == 0
    assert project.files() != before
    removed = project.setup("--remove")
    assert (removed.code, "the mesh and its data stay" in removed.err) == (0, True), removed
    assert project.files() == before
    assert not (folder / ".claude").exists()
    assert [tokens(project, host) for host in HOSTS] == [[]] * len(HOSTS)
    assert list((folder / ".vox" / "agents").glob("*.token")) == []
    assert project.states("--remove") == {"mesh: .vox": "kept"}


def test_removing_one_host_keeps_what_the_others_share(project: Project) -> None:
    project.setup("claude", "codex", "gemini")
    project.setup("--remove", "codex")
    assert set(project.states("--check", "claude", "gemini").values()) == {"present", "missing"}
    assert not (project.folder / ".codex").exists()
    project.setup("--remove", "gemini")
    assert not (project.folder / ".agents").exists()
    assert (project.folder / "AGENTS.md").exists()


def test_the_name_of_an_agent_stays_until_another_one_is_given(project: Project) -> None:
    project.setup("claude", "--agent", "reviewer")
    assert project.setup("claude").code == 0
    entry = json.loads((project.folder / ".mcp.json").read_text())["mcpServers"]["vox-mesh"]
    assert "reviewer" in entry["env"]["VOX_AGENT_ID"]
    assert (project.folder / ".vox" / "agents" / "reviewer.token").exists()
    assert not (project.folder / ".vox" / "agents" / "claude.token").exists()
    refused = project.setup("claude", "codex", "--agent", "one")
    assert "--agent needs one HOST" in refused.error


def test_a_repository_can_not_choose_the_agent(project: Project) -> None:
    entry = {"command": "vox-mesh", "args": ["mcp"], "env": {"VOX_AGENT_ID": "boss"}}
    (project.folder / ".mcp.json").write_text(json.dumps({"mcpServers": {"vox-mesh": entry}}))
    git = ["git", "-C", str(project.folder)]
    subprocess.run([*git, "add", ".mcp.json"], check=True, env=project.vox.environment)
    refused = project.setup("claude")
    assert refused.code == 2
    assert "a file that git tracks names 'boss'" in refused.err
    assert not (project.folder / ".vox").exists()
    assert project.setup("claude", "--agent", "ann").code == 0
    assert (project.folder / ".vox" / "agents" / "ann.token").exists()


def test_hosts_are_found_by_their_folders_and_commands(project: Project, tmp_path: Path) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    git = commands / "git"
    git.symlink_to(Path(subprocess.check_output(["which", "git"], text=True).strip()))
    alone = Project(project.folder, tmp_path / "user", PATH=str(commands))
    assert "no host found" in alone.setup("--check").error
    (project.folder / ".gemini").mkdir()
    (commands / "opencode").write_text("#!/bin/sh\n")
    (commands / "opencode").chmod(0o755)
    found = alone.setup()
    assert found.code == 0, found
    assert "found gemini: .gemini" in found.err
    assert f"found opencode: {commands}/opencode" in found.err
    assert (project.folder / "opencode.json").exists()
    assert not (project.folder / ".mcp.json").exists()


def test_an_agent_can_not_set_itself_up(project: Project) -> None:
    agent = Project(project.folder, project.folder.parent / "user", VOX_AGENT_ID="coder")
    assert "must be run by a person" in agent.setup("claude").error
    assert not (project.folder / ".vox").exists()


def test_a_user_who_is_not_the_owner_is_given_one_line_for_the_owner(
    project: Project, tmp_path: Path
) -> None:
    assert project.setup("claude").code == 0
    database = project.folder / ".vox" / "cache" / "db" / "local.db"
    other = Project(tmp_path / "other", tmp_path / "user", VOX_DB_PATH=str(database))
    ended = other.setup("codex")
    assert ended.code == 1
    (line,) = (each for each in ended.err.splitlines() if "ask the owner" in each)
    assert (other.folder / ".codex" / "config.toml").exists(), "the rest is done"
    commands = line.split("to run: ")[1].split(";")[0].split(" && ")
    answers = [project.vox(*command.split()[1:], "--json").document for command in commands]
    (other.folder / ".vox" / "agents" / "codex.token").write_text(answers[-1]["token"])
    again = other.setup("codex")
    assert again.code == 0, again


def test_a_token_that_ends_soon_is_replaced(project: Project) -> None:
    project.setup("claude")
    path = project.folder / ".vox" / "agents" / "claude.token"
    (before,) = tokens(project, "claude")
    issued = project.vox("agents", "token", "issue", "claude", "--lasts", "20d", "--json").document
    path.write_text(issued["token"])
    assert project.setup("claude").code == 0
    assert path.read_text() != issued["token"]
    left = {each["token_id"] for each in tokens(project, "claude")}
    assert before["token_id"] in left
    assert issued["token_id"] not in left


def test_setup_starts_a_node_once_and_remove_stops_it(project: Project) -> None:
    home = project.folder / ".vox"
    assert project.vox("setup", "claude").code == 0
    assert is_node_running(home)
    assert project.vox("setup", "--check", "claude").code == 0
    again = {each["part"]: each["state"] for each in project.vox("setup", "claude", "--json").document}
    assert again["node"] == "unchanged"
    assert project.vox("setup", "--remove").code == 0
    assert not is_node_running(home)
    assert project.vox("setup", "--check", "claude").code == 1


def test_an_agent_commits_what_it_has_locked_and_not_what_another_one_has(project: Project) -> None:
    project.setup("claude", "--agent", "coder")
    repository = Repository(project.folder, project.vox.environment)
    session = repository.having(CLAUDECODE="1")
    project.vox("lock", "acquire", "file:src/app.py", "--agent", "coder")
    repository.write("src/app.py", text="changed\n")
    repository.git("add", "src/app.py")
    unnamed = repository.commit()
    assert unnamed.returncode != 0, "a shell of no agent"
    assert "set VOX_AGENT_ID to your name" in unnamed.stdout + unnamed.stderr
    project.vox("lock", "acquire", "file:src/app.py", "--agent", "coder")
    done = session.commit()
    assert done.returncode == 0, done
    project.vox("lock", "release", "file:src/app.py", "--agent", "coder")
    project.vox("lock", "acquire", "file:src/app.py", "--agent", "reviewer")
    repository.write("src/app.py", text="changed again\n")
    repository.git("add", "src/app.py")
    denied = session.commit()
    assert denied.returncode != 0
    assert "reviewer" in denied.stdout + denied.stderr


def test_a_command_in_the_shell_of_a_host_knows_its_agent(project: Project) -> None:
    project.setup("claude", "--agent", "coder")
    assert "no agent given" in project.vox("lock", "acquire", "file:a.py").err
    shell = project.vox.having(CLAUDECODE="1")
    assert shell("lock", "acquire", "file:a.py", "--json").code == 0
    (held,) = project.vox("lock", "list", "--json").document
    assert held["holder_agent"] == "coder"
    assert shell("inbox").code in (0, 1), "a mailbox of its own"
    assert shell("lock", "release", "file:a.py").code == 0
