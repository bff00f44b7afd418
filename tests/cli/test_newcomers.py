"""The mistakes of newcomers: each ends with its exit code and with a line that says what to do."""

from __future__ import annotations

import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.cli.conftest import Ended, VoxCommand
from tests.support.running.repositories import GIT_SETTINGS
from tools.sqld import Server, free_port
from vox_mesh.store.schema.schema import VERSION

_PATIENCE_S: Final = 60


class Mistake(NamedTuple):
    """A command that goes wrong: how it ends, and pieces of what it prints."""

    run: Callable[[VoxCommand], Ended]
    code: int
    says: tuple[str, ...]


def typed(line: str, **variables: str) -> Callable[[VoxCommand], Ended]:
    """A command, with these variables."""
    return lambda vox: vox.having(**variables)(*line.split())


def _stray_space(vox: VoxCommand) -> Ended:
    return vox("lock", "acquire", "file: a", "--agent", "ada")


def _expired(vox: VoxCommand) -> Ended:
    held = vox("lock", "acquire", "task:a", "--agent", "ada", "--ttl", "100ms", "--json").document
    assert vox("lock", "acquire", "task:a", "--agent", "bob", "--wait", "30s").code == 0  # after its end
    return vox("lock", "renew", "task:a", "--token", str(held["fence_token"]))


def _uninitialised(vox: VoxCommand) -> Ended:
    clone = vox.folder.parent / "clone"
    clone.mkdir()
    return VoxCommand(clone, **GIT_SETTINGS)("lock", "list")


def _second_mesh(vox: VoxCommand) -> Ended:
    subprocess.run(["git", "init", "--quiet", vox.folder], check=True)
    (vox.folder / "src").mkdir()
    return VoxCommand(vox.folder / "src", **vox.variables)("init", "--here")


def _wrong_token(vox: VoxCommand) -> Ended:
    with Server() as ours, Server() as other:
        return vox.at(ours, other.token)("lock", "list")


def _read_only_token(vox: VoxCommand) -> Ended:
    with Server() as server:
        assert vox.at(server)("db", "init").code == 0
        read_only = vox.at(server, server.token_with({"a": "ro"}))
        return read_only("send", "bob", "hello", "--from", "ada")


def _bad_yaml(vox: VoxCommand) -> Ended:
    (vox.folder / "jobs.yaml").write_text("jobs: [\n")
    return vox("job", "schedule", "--file", "jobs.yaml", "--json")


def _future_schema(vox: VoxCommand) -> Ended:
    path = vox.folder / ".vox/cache/db/local.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(
            "INSERT INTO mesh_schema (version, oldest_code) VALUES (?, ?)", (VERSION + 2, VERSION + 1)
        )
    return vox("lock", "list")


def _full_disk(vox: VoxCommand) -> Ended:
    """No file may grow beyond a kilobyte."""
    shell = f"ulimit -f 1; exec {sys.executable} -m vox_mesh.cli lock acquire task:a --agent ada"
    ended = subprocess.run(
        ["bash", "-c", shell],
        cwd=vox.folder,
        env=vox.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE_S,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def _port_in_use(vox: VoxCommand) -> Ended:
    with socket.create_server(("127.0.0.1", 0)) as other:
        return vox("up", "--once", "--bind", f"127.0.0.1:{other.getsockname()[1]}")


def _interrupt(vox: VoxCommand) -> Ended:
    """While it waits for a server that does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(_PATIENCE_S)
        port = silent.getsockname()[1]
        with vox.having(VOX_DB_URL=f"http://127.0.0.1:{port}").launch("lock", "list") as command:
            caller, _ = silent.accept()
            with caller:
                command.send_signal(signal.SIGINT)
                out, err = command.communicate(_PATIENCE_S)
    return Ended(command.wait(), out, err)


def _held(vox: VoxCommand) -> Ended:
    assert vox("lock", "acquire", "task:a", "--agent", "ada").code == 0
    return vox("lock", "acquire", "task:a", "--agent", "bob")


MISTAKES: Final = {
    "lock of another": Mistake(_held, 1, ("held by ada", "--wait 10m", "[lock_held]")),
    "no agent": Mistake(typed("lock acquire file:a"), 2, ("pass --agent NAME or set VOX_AGENT_ID",)),
    "wrong prefix": Mistake(
        typed("lock acquire path:src/lib.rs --agent ada"), 2, ("write 'file:src/lib.rs'", "[bad_value]")
    ),
    "stray space": Mistake(_stray_space, 2, ("stray spaces", "write 'file:a'", "[bad_value]")),
    "absolute path": Mistake(
        typed("lock acquire file:/etc/passwd --agent ada"), 2, ("must be relative", "root of the repository")
    ),
    "expired lock": Mistake(_expired, 1, ("not held under token", "vox-mesh lock list", "[not_known]")),
    "token forgotten": Mistake(typed("lock renew task:a"), 2, ("--token", "lock renew --help")),
    "mesh not initialised": Mistake(_uninitialised, 2, ("repository has none", "run `vox-mesh init`")),
    "second mesh": Mistake(_second_mesh, 0, ("warning: second mesh in this repository", "VOX_MESH_HOME")),
    "misspelt variable": Mistake(
        typed("status", VOX_MESH_NODEID="a"), 0, ("did you mean VOX_MESH_NODE_ID instead of VOX_MESH_NODEID",)
    ),
    "no server": Mistake(
        typed("lock list", VOX_DB_URL=f"http://127.0.0.1:{free_port()}"),
        3,
        ("can't be reached", "[unreachable]"),
    ),
    "wrong token": Mistake(_wrong_token, 2, ("VOX_DB_TOKEN", "[unauthorized]")),
    "read-only token": Mistake(_read_only_token, 2, ("token", "[unauthorized]")),
    "plain-text token": Mistake(
        typed("lock list", VOX_DB_URL="http://192.0.2.1:8080", VOX_DB_TOKEN="eyJ"),
        2,
        ("would be sent unencrypted to 192.0.2.1", "VOX_DB_ALLOW_PLAINTEXT=1"),
    ),
    "bad YAML": Mistake(_bad_yaml, 2, ('"code": "bad_manifest"', "jobs.yaml:1", "correct it")),
    "bad duration": Mistake(
        typed("lock acquire file:a --agent ada --ttl soon"), 2, ("'soon' is not a duration", "5m")
    ),
    "command without --": Mistake(
        typed("job schedule echo hi"), 2, ("must follow `--`, such as `-- make test`", "schedule --help")
    ),
    "unknown command": Mistake(typed("lokc list"), 2, ("did you mean `vox-mesh lock`?",)),
    "command of another program": Mistake(
        typed("job run -- make"), 2, ("did you mean `vox-mesh job schedule --wait -- COMMAND`?",)
    ),
    "misspelt subcommand": Mistake(
        typed("lock aquire task:a"), 2, ("did you mean `vox-mesh lock acquire`?",)
    ),
    "to before the recipient": Mistake(
        typed("send to bob well done"), 2, ("did you mean `vox-mesh send bob 'well done'`?",)
    ),
    "missing file": Mistake(
        typed("job schedule --file none.yaml"), 2, ("none.yaml can't be read: No such file",)
    ),
    "future schema": Mistake(_future_schema, 2, ("upgrade vox-mesh", "[schema_too_new]")),
    "full disk": Mistake(_full_disk, 1, ("is the disk full?", "[database_fault]")),
    "port in use": Mistake(_port_in_use, 2, ("Address already in use", "choose another port")),
    "Ctrl-C": Mistake(_interrupt, 130, ()),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_with_its_code_and_says_what_to_do(name: str, tmp_path: Path) -> None:
    mistake = MISTAKES[name]
    vox = VoxCommand(tmp_path / "work", **GIT_SETTINGS)
    vox.folder.mkdir()
    assert vox("init").code == 0
    ended = mistake.run(vox)
    shown = ended.out + ended.err
    assert ended.code == mistake.code, ended
    assert [piece for piece in mistake.says if piece not in shown] == [], shown
    assert "Traceback" not in shown
    if ended.code not in (0, 130):
        assert (ended.out, ended.err.count("\n")) == ("", 1), ended


EVERYDAY: Final = {
    "lock acquire task:a": r"acquired task:a for ada \(token \d+\), expires in 5m",
    "lock acquire task:a --ttl 1h30m": r"renewed task:a for ada \(token \d+\), expires in 1h30m",
    "lock release task:a": r"released task:a for ada \(token \d+\)",
    "lock release --all": "ada holds no locks here",
    "send bob hello": r"sent to bob \(message \w{26}\)",
    "send bob hello --wait-ack 1ms": r"sent to bob, not acknowledged yet \(message \w{26}\)",
    "job schedule --kind a.b": r"scheduled job [0-9a-f]{12} \(a\.b\)",
}


def test_everyday_commands_say_in_one_line_what_they_did(tmp_path: Path) -> None:
    vox = VoxCommand.with_home(tmp_path, VOX_AGENT_ID="ada")
    printed = {command: vox(*command.split()).out for command in EVERYDAY}
    assert [out for command, out in printed.items() if not re.fullmatch(f"{EVERYDAY[command]}\n", out)] == []
