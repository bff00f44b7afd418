"""Commands next to a node: served by its command server, they are what they are without one."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Final

import click
import pytest

from tests.cli.conftest import Ended, VoxCommand
from tests.support.running.repositories import GIT_SETTINGS, Repository, new_repository
from tools.forked import Process
from vox_mesh.cli.app import app
from vox_mesh.cli.command_server.forwarded import OPTIONS, forwarded_name

_PATIENCE_S: Final = 60.0
_OFF: Final = {"VOX_MESH_COMMAND_SERVER": "0"}
_CHANGING: Final = re.compile(r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b|\d+")
"""Ids, tokens, times and ages: they differ from run to run."""

_COMMANDS: Final = (
    "lock list",
    "lock list --json",
    "lock acquire task:{} --agent ann --json",
    "lock acquire task:free task:held --agent bob",
    "lock acquire task:held --agent bob --json",
    "lock acquire task:other",
    "lock acquire",
    "lock acquire task:x --agent bob --ttl soon",
    "lock renew task:held --token 5",
    "lock release task:none --token 5 --json",
    "lock list --agent ann",
    "lock list --agent dan --json",
    "lock acquire task:held --agent ann --fresh",
    "lock acquire task:beat{} --agent cat --heartbeats",
    "agents heartbeat cat --json",
    "agents heartbeat",
    "lock release task:held --agent bob",
    "lock release --all --agent dan --json",
    "lock release task:{} --agent ann --literal",
    "lock release --all --token 5",
    "guard check free.txt --agent bob --require-lock --json",
    "guard check held.txt free.txt --agent bob",
    "guard check held.txt --agent bob --json",
    "guard check free.txt --agent bob",
    "guard check ../outside --agent bob",
    "send bob grüße-🎺 --from ann --json",
    "send * hello --from ann",
    "send bob hello --from ann --priority 9",
    "agents --json",
    "nodes",
    "nodes --json",
    "nodes --stale-ms=x",
    "messages show 01ARZ3NDEKTSV4RRFFQ69G5FAV",
    "job show nothing",
    "job list --json",
)


class NodeWithServer:
    """A node with a command server, and its log."""

    def __init__(self, vox: VoxCommand, process: Process) -> None:
        self.vox = vox
        self.process = process

    def served(self, *arguments: str, vox: VoxCommand | None = None) -> Ended:
        """Run a command; fail if the command server has not run it."""
        ended = (self.vox if vox is None else vox)(*arguments)
        line = self.next_line("command ")
        assert line.startswith(f"info: command served: command='{forwarded_name(arguments)}'"), line
        assert f"code={ended.code} " in line
        return ended

    def next_line(self, words: str) -> str:
        """Return the next line of the log with these words."""
        assert self.process.stderr is not None
        return next(line for line in self.process.stderr if words in line)

    def waiters(self) -> list[int]:
        """Return how many wait for each lock."""
        return [each["waiting"] for each in self.vox.having(**_OFF)("lock", "list", "--json").document]


@contextmanager
def _up(folder: Path) -> Iterator[NodeWithServer]:
    vox = VoxCommand(folder / "code", VOX_MESH_ENABLED="1", VOX_MESH_COMMAND_SERVER="1")
    new_repository(vox.folder, vox.having(**GIT_SETTINGS).environment)
    assert vox("db", "init").code == 0
    for key in ("task:held", "file:held.txt"):
        assert vox("lock", "acquire", key, "--agent", "ann", "--ttl", "1h").code == 0
    with vox.running("up", "--tick", "1h") as process:
        node = NodeWithServer(vox, process)
        node.next_line("command server ready")
        yield node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeWithServer]:
    with _up(tmp_path_factory.mktemp("node")) as node:
        yield node


def _until(is_so: Callable[[], bool]) -> None:
    deadline = monotonic() + _PATIENCE_S
    while not is_so():
        assert monotonic() < deadline
        sleep(0.02)


def _fixed(ended: Ended) -> tuple[int, str, str]:
    return ended.code, _CHANGING.sub("N", ended.out), _CHANGING.sub("N", ended.err)


def test_output_errors_and_exit_codes_are_the_same_with_and_without_a_node(node: NodeWithServer) -> None:
    alone = node.vox.having(**_OFF)
    codes = set()
    for command in _COMMANDS:
        served = node.served(*command.format(1).split())
        assert _fixed(served) == _fixed(alone(*command.format(2).split())), command
        codes.add(served.code)
    assert codes == {0, 1, 2}


def test_ctrl_c_or_the_death_of_the_caller_ends_a_command_that_waits(node: NodeWithServer) -> None:
    waiting = ("lock", "acquire", "task:held", "--agent", "bob", "--wait", "1h")
    with node.vox.launch(*waiting) as caller:
        _until(lambda: 1 in node.waiters())
        caller.send_signal(signal.SIGINT)
        out, err = caller.communicate(_PATIENCE_S)
    assert (caller.wait(), out) == (130, "")
    assert err.startswith("vox-mesh: interrupted; ")
    assert 1 not in node.waiters()
    node.next_line("code=130")
    with node.vox.running(*waiting) as caller:
        _until(lambda: 1 in node.waiters())
        caller.kill()
        _until(lambda: 1 not in node.waiters())
        node.next_line("code=130")


def test_a_command_with_another_database_home_or_switch_runs_by_itself(node: NodeWithServer) -> None:
    others: tuple[dict[str, str], ...] = (
        {"VOX_DB_PATH": "other.db"},
        {"VOX_MESH_SCOPE_ID": "other"},
        {"VOX_MESH_HOME": "other"},
        {"VOX_MESH_ENABLED": "0"},
        _OFF,
    )
    for variables in others:
        node.vox.having(**variables)("lock", "acquire", "task:x", "--agent", "bob")
    assert node.served("lock", "acquire", "task:x", "--agent", "bob").code == 1  # of `_OFF`, and of no other
    assert (node.vox.folder / "other.db").exists()


def test_the_agent_and_the_folder_are_those_of_the_caller(node: NodeWithServer) -> None:
    bob = node.vox.having(VOX_AGENT_ID="bob")
    assert node.served("lock", "acquire", "task:y", "--json", vox=bob).document["holder_agent"] == "bob"
    (node.vox.folder / "sub").mkdir()
    below = VoxCommand(node.vox.folder / "sub", **node.vox.variables)
    assert node.served("guard", "check", "../held.txt", "--agent", "bob", vox=below).code == 1
    assert node.served("guard", "check", "held.txt", "--agent", "bob", vox=below).code == 0


def test_commands_in_a_linked_worktree_are_served_by_the_node_of_the_repository(node: NodeWithServer) -> None:
    repository = Repository(node.vox.folder, node.vox.environment)
    repository.settle("a.txt")
    repository.git("worktree", "add", "--quiet", "../tree")
    tree = VoxCommand(node.vox.folder.parent / "tree", **node.vox.variables)
    assert node.served("guard", "check", "held.txt", "--agent", "bob", vox=tree).code == 1


def test_commands_go_on_when_the_node_is_killed(tmp_path: Path) -> None:
    with _up(tmp_path) as node:
        socket = next((node.vox.folder / ".vox").glob("slots/*/commands.sock"))
        assert socket.stat().st_mode & 0o777 == 0o600
        node.process.kill()
        _until(lambda: not socket.exists())  # the server ends with it, and removes its socket
        assert node.vox("lock", "acquire", "task:held", "--agent", "bob").code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        *("", "up", "lock", "lock run task:x -- true", "nodes watch", "nodes --json watch", "nodes rekey x"),
        "nodes remove x",
        "agents --limit 3 watch",
        *("send bob -", "send bob -- x", "guard check --staged", "guard check --settings-in=x a.txt"),
        "lock acquire task:x --session",
        *("lock list --watch", "lock acquire task:x --help", "db status", "job schedule --file x"),
    ],
)
def test_everything_else_is_not_forwarded(arguments: str) -> None:
    assert forwarded_name(arguments.split()) is None


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_every_forwarded_command_has_the_options_in_the_table(name: str) -> None:
    context = click.Context(app)
    command: click.Command | None = app
    for part in name.split():
        assert isinstance(command, click.Group)
        command = command.get_command(context, part)
    assert command is not None
    assert {option for each in command.params for option in each.opts} >= OPTIONS[name]
