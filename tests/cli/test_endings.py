"""How commands end: exit codes, one line per error, and nothing that should not be seen."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from tests.cli.conftest import MESH_TOKEN, VoxCommand
from tools.sqld import Server, free_port
from vox_mesh import errors
from vox_mesh.cli import app
from vox_mesh.cli.support.exit_codes import exit_code_of
from vox_mesh.errors import MeshError


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("db", "status"), ("nodes",)])
def test_the_network_is_loaded_only_for_the_mesh_home(vox: VoxCommand, arguments: tuple[str, ...]) -> None:
    ended = vox(*arguments, python=("-X", "importtime"))
    assert ended.code == 0
    assert "vox_mesh.cli" in ended.err  # the list of imports
    assert "aiohttp" not in ended.err


def test_the_version_is_the_packages(vox: VoxCommand) -> None:
    assert vox("--version").out == f"vox-mesh, version {version('vox-mesh')}\n"


def test_without_arguments_help_is_shown(vox: VoxCommand) -> None:
    ended = vox()
    assert ended.code == 0
    assert ended.out == vox("--help").out
    assert "db" in ended.out


def _all_commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _all_commands(inner, (*path, name))


@pytest.mark.parametrize("command", [*_all_commands(app.app)], ids=" ".join)
def test_help_has_an_example(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run([*command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"vox-mesh {' '.join(command)}" in re.split("Examples?:", shown)[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("db",),
        ("db", "nonsense"),
        ("db", "status", "--nonsense"),
        ("db", "status", "too", "many"),
        ("db", "backup"),
        ("nodes", "--json", "watch"),
        ("oplog", "tail", "--limit", "-1"),
        ("--nonsense",),
    ],
)
def test_wrong_usage_ends_with_2_and_one_line(vox: VoxCommand, arguments: tuple[str, ...]) -> None:
    ended = vox(*arguments)
    assert ended.code == 2
    assert "--help`" in ended.error


@pytest.mark.parametrize("command", ["send --from", "oplog tail --limit", "rhythm help ask --from"])
def test_an_option_without_its_value_leads_to_the_help_of_its_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _, option = command.rpartition(" ")
    assert app.run(command.split()) == 2
    shown = capsys.readouterr().err
    assert shown == f"vox-mesh: option '{option}' requires an argument; see `vox-mesh {path} --help`\n"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("VOX_MESH_ENABLED", "perhaps"),
        ("VOX_DB_URL", "gopher://example"),
        ("VOX_DB_URL", "libsql://example?jwt=eyJsecret"),
        ("VOX_DB_URL", "libsql://user:eyJsecret@example"),
        ("VOX_DB_DRIVER", "pigeon"),
        ("VOX_LOG_FORMAT", "poem"),
        ("VOX_DB_DEADLINE", "soon"),
    ],
)
def test_a_bad_setting_ends_with_2_and_names_the_variable(vox: VoxCommand, variable: str, value: str) -> None:
    ended = vox.having(**{variable: value})("doctor")
    assert ended.code == 2
    assert variable in ended.error
    assert "for example" in ended.error
    assert "eyJsecret" not in ended.error


@pytest.mark.parametrize("command", ["db init", "doctor"])
def test_a_token_never_travels_unencrypted_to_another_machine(vox: VoxCommand, command: str) -> None:
    far = vox.having(VOX_DB_URL="http://192.0.2.1:8080", VOX_DB_TOKEN="eyJsecret")
    ended = far(*command.split())
    assert ended.code == 2
    assert "VOX_DB_ALLOW_PLAINTEXT" in ended.error
    assert "eyJsecret" not in ended.error
    assert "aiohttp" not in far(*command.split(), python=("-X", "importtime")).err  # so nothing was sent


def test_with_the_database_away_the_status_still_shows_what_waits_here(vox: VoxCommand) -> None:
    away = vox.having(VOX_DB_URL=f"http://127.0.0.1:{free_port()}")
    ended = away("db", "status", "--json")
    assert ended.code == 3
    assert ended.err.count("\n") == 1
    assert "can't be reached" in ended.err
    assert ended.document["spool"] == {"depth": 0, "bytes": 0, "oldest_ms": None, "refused": 0}
    assert "rows" not in ended.document


@pytest.mark.parametrize("command", ["db init", "db backup b.db"])
@pytest.mark.parametrize("driver", ["auto", "ws", "http", "libsql-client"])
def test_an_unreachable_database_ends_with_3(vox: VoxCommand, command: str, driver: str) -> None:
    away = vox.having(VOX_DB_URL=f"http://127.0.0.1:{free_port()}", VOX_DB_DRIVER=driver)
    ended = away(*command.split())
    assert ended.code == 3
    assert "can't be reached" in ended.error


@pytest.mark.parametrize("driver", ["ws", "http", "libsql-client"])
def test_a_wrong_token_ends_with_2(vox: VoxCommand, shared_server: Server, driver: str) -> None:
    with Server() as other:
        forged = other.token
    ended = vox.at(shared_server, forged).having(VOX_DB_DRIVER=driver)("db", "status")
    assert ended.code == 2
    assert "VOX_DB_TOKEN" in ended.error
    assert forged not in ended.error


@pytest.mark.parametrize("driver", ["ws", "http", "libsql-client"])
def test_a_token_that_may_only_read_can_not_create_the_schema(
    vox: VoxCommand, server: Server, driver: str
) -> None:
    ended = vox.at(server, server.token_with({"a": "ro"})).having(VOX_DB_DRIVER=driver)("db", "init")
    assert ended.code == 2
    assert "token" in ended.error


def test_a_file_that_is_no_database_ends_with_2_and_is_left_alone(vox: VoxCommand) -> None:
    letter = vox.folder / "letter.txt"
    letter.write_text("Dear database,")
    ended = vox.having(VOX_DB_PATH=str(letter))("db", "init")
    assert ended.code == 2
    assert "not a SQLite database" in ended.error
    assert letter.read_text() == "Dear database,"


_EXITS = {
    "BadSettings": 2,
    "DriverMissing": 2,
    "BadValue": 2,
    "WrongBackend": 2,
    "ForeignDatabase": 2,
    "NotJson": 2,
    "BadArguments": 2,
    "ApprovalPending": 5,
}
_EXITS |= dict.fromkeys(("Unauthorized", "SchemaTooNew", "DatabaseNotOpened", "BadWorkflow"), 2)
_EXITS |= dict.fromkeys(("BadDocument", "BadManifest", "BadPolicy", "BadScore", "BadBudget", "BadAddress"), 2)
_EXITS |= dict.fromkeys(("DatabaseUnavailable", "Unreachable", "ServerFull", "NoAnswer", "CircuitOpen"), 3)
_EXITS |= dict.fromkeys(("DatabaseBusy", "DatabaseClockJumped", "OutcomeUnknown", "Overloaded"), 3)


@pytest.mark.parametrize("kind", [each for each in vars(errors).values() if isinstance(each, type)])
def test_each_error_of_the_family_has_its_exit_code(kind: type[object]) -> None:
    if issubclass(kind, MeshError):
        error = kind.__new__(kind)
        assert exit_code_of(error) == _EXITS.get(kind.__name__, 1)


def test_a_bug_is_one_line_that_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(app._COMMANDS, "broken", "tests.cli.doctor.broken:broken")
    assert app.run(["broken"]) == 70
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert "internal error: ZeroDivisionError: one two; " in shown.err
    assert "VOX_DEBUG=1" in shown.err


def test_a_bug_shows_its_traceback_when_asked_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(app._COMMANDS, "broken", "tests.cli.doctor.broken:broken")
    monkeypatch.setenv("VOX_DEBUG", "1")
    assert app.run(["broken"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_ends_with_130_and_at_most_one_line(vox: VoxCommand) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        port = silent.getsockname()[1]
        with vox.having(VOX_DB_URL=f"http://127.0.0.1:{port}").launch("db", "status") as command:
            caller, _ = silent.accept()
            with caller:
                caller.settimeout(60)
                assert caller.recv(1)  # it is under way
                command.send_signal(signal.SIGINT)
                out, err = command.communicate(timeout=60)
    assert command.returncode == 130
    assert out == ""
    assert err.count("\n") <= 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments", [("db", "status"), ("db", "status", "--json"), ("doctor",), ("--help",)]
)
def test_a_reader_that_has_seen_enough_is_no_error(vox: VoxCommand, arguments: tuple[str, ...]) -> None:
    with vox.launch(*arguments) as command:
        command.stdout.close()
        err = command.stderr.read()
        command.wait(timeout=60)
    assert err == ""
    assert command.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize(
    ("redirected", "why"), [("> /dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)
@pytest.mark.parametrize("command", ["nodes --json", "--version"])
def test_an_output_that_can_not_be_written_ends_with_1_and_one_line(
    vox: VoxCommand, command: str, redirected: str, why: str
) -> None:
    shell = f"{sys.executable} -m vox_mesh.cli {command} {redirected}"
    ended = subprocess.run(
        shell, shell=True, cwd=vox.folder, env=vox.environment, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert f"cannot write to standard output: {why}" in line


@pytest.mark.parametrize(("log_format", "debug", "tokens"), [("text", "0", 5), ("json", "1", 3)])
def test_secrets_are_never_shown(
    vox: VoxCommand, shared_server: Server, log_format: str, debug: str, tokens: int
) -> None:
    with Server() as other:
        forged = other.token
    read_only = shared_server.token_with({"a": "ro"})
    for token in (shared_server.token, "ünï", forged, "line\nbreak", read_only)[:tokens]:
        mesh = vox.at(shared_server, token).having(VOX_LOG_FORMAT=log_format, VOX_DEBUG=debug)
        for command in ("db status --json", "doctor"):
            ended = mesh(*command.split())
            shown = ended.out + ended.err
            assert token not in shown, (command, shown)
            assert MESH_TOKEN not in shown, (command, shown)
            assert debug == "1" or "Traceback" not in shown, (command, shown)
