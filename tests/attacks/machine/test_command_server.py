"""Attacks on the command server of a node, and callers that must not repeat a command."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from vox_mesh import load_settings
from vox_mesh.cli.command_server import client
from vox_mesh.cli.command_server.request import DESCRIPTORS, GO, MAX_BYTES, READY, SOCKET
from vox_mesh.cli.command_server.served import Served, ServedCommand
from vox_mesh.cli.command_server.server import CommandServer
from vox_mesh.runtime.open_store import target_of

_PATIENCE_S: Final = 30.0
_COMMAND: Final = ("lock", "list")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the current folder, in which there is a slot."""
    monkeypatch.chdir(tmp_path)
    for name in [each for each in os.environ if each.startswith("VOX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("VOX_MESH_ENABLED", "1")
    (tmp_path / ".vox/slots/1").mkdir(parents=True)
    return tmp_path / ".vox"


@contextmanager
def _listening(home: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.settimeout(_PATIENCE_S)
        listening.bind(str(home / "slots/1" / SOCKET))
        listening.listen()
        yield listening


def _answered(home: Path, *replies: bytes) -> int | None:
    """Return what the caller makes of a server that answers so, and then is gone."""

    def serve() -> None:
        caller, _ = listening.accept()
        with caller:
            caller.settimeout(_PATIENCE_S)
            for each in socket.recv_fds(caller, 65_536, DESCRIPTORS)[1]:
                os.close(each)
            for reply in replies:
                caller.sendall(reply)
                assert caller.recv(1) == GO

    with _listening(home) as listening:
        server = threading.Thread(target=serve)
        server.start()
        try:
            return client.run_at_node(_COMMAND)
        finally:
            server.join(_PATIENCE_S)


def test_a_command_is_not_repeated_after_its_answer_is_lost(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _answered(home, READY) == 3
    assert "outcome unknown" in capsys.readouterr().err


def test_a_command_runs_by_itself_if_the_server_goes_before_it_may_begin(home: Path) -> None:
    assert _answered(home) is None
    (home / "slots/1" / SOCKET).unlink()
    assert client.run_at_node(_COMMAND) is None


def test_a_command_of_another_user_is_not_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked for another user"))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with _listening(home) as listening, socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(_PATIENCE_S)
        caller.connect(listening.getsockname())
        CommandServer(listening, _served(home)).accept()
        assert caller.recv(1) == b""


def test_nothing_is_sent_to_a_server_of_another_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(client, "_is_own", lambda path: True)  # a socket in a folder of its own
    with _listening(home) as listening:
        assert client.run_at_node(_COMMAND) is None
        with listening.accept()[0] as caller:
            assert caller.recv(1) == b""


def _served(home: Path) -> Served:
    return Served(home.resolve(), target_of(load_settings()), "", "text")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("VOX_DB_PATH", "other.db"),
        ("VOX_DB_URL", "http://127.0.0.1:1"),
        ("VOX_MESH_HOME", "other"),
        ("VOX_MESH_SCOPE_ID", "other"),
        ("VOX_MESH_REPOSITORY_ID", "other"),
        ("VOX_MESH_COMMAND_SERVER", "0"),
        ("VOX_MESH_TICK", "wrong"),
    ],
)
def test_settings_of_another_mesh_are_not_served(
    home: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = ServedCommand(ours, _served(home))
        assert command._is_same_mesh()
        monkeypatch.setenv(variable, value)
        assert not command._is_same_mesh()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0\x05short",
        (MAX_BYTES + 1).to_bytes(4, "big") + b"x",
        b"\0\0\0\x09a\0b\0c\0d\0e",
        b"\0\0\0\x1ca\0strict\x0018\x001\0up\0PATH=/tmp/x",
    ],
)
def test_a_malformed_request_ends_without_a_reply(home: Path, data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, (home / "nothing").open("wb") as file:
        socket.send_fds(theirs, [data or b"\0"], [file.fileno()] * DESCRIPTORS)
        theirs.shutdown(socket.SHUT_WR)
        assert ServedCommand(ours, _served(home)).run() == 0
        ours.close()
        assert theirs.recv(1) == b""


@pytest.mark.parametrize("place", ["", "slots", "slots/1", f"slots/1/{SOCKET}"])
def test_a_caller_tells_nothing_to_a_socket_behind_a_link(home: Path, place: str) -> None:
    with _listening(home) as listening:
        linked = home / place
        linked.rename(home.parent / "elsewhere")
        linked.symlink_to(home.parent / "elsewhere")
        listening.setblocking(False)
        assert client.run_at_node(_COMMAND) is None
        with pytest.raises(BlockingIOError):
            listening.accept()
