"""The start of a database server: no other user of the machine gets its keys or has it run programs."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

import pytest

from tests.cli.conftest import VoxCommand
from tests.deploy.test_server import ScriptedServer
from tests.support.running.confined import IS_ROOT, OTHER_USER
from tools.install_sqld import binary, extensions
from tools.sqld import free_port
from vox_mesh.contrib.sqld.launch import Launch, Listen
from vox_mesh.errors import BadSettings

as_root: Final = pytest.mark.skipif(not IS_ROOT, reason="only root can act as another user")


def listening_as(user: int, port: int) -> socket.socket:
    """A socket of another user on loopback."""
    os.seteuid(user)
    try:
        return socket.create_server(("127.0.0.1", port))
    finally:
        os.seteuid(0)


@as_root
def test_who_waits_at_the_admin_port_before_the_server_is_not_sent_its_key() -> None:
    server = ScriptedServer()
    with listening_as(OTHER_USER, server.admin_port) as thief:
        thief.setblocking(False)
        with pytest.raises(RuntimeError, match="did not start"):  # its port is taken
            server.start()
        with pytest.raises(BlockingIOError):
            thief.accept()


@pytest.mark.parametrize("content", [None, "", "-----BEGIN PRIVATE KEY-----\n"])
def test_no_server_starts_without_the_key_that_its_tokens_are_checked_with(
    content: str | None, tmp_path: Path
) -> None:
    key = tmp_path / "sqld.pub.pem"
    if content is not None:
        key.write_text(content)
    launch = Launch(binary(), extensions(), tmp_path / "data", Listen.parse(f"127.0.0.1:{free_port()}"), key)
    with pytest.raises(BadSettings, match="public key"):
        launch.prepare()
    assert not launch.data.exists()


@pytest.mark.parametrize("fault", ["world", pytest.param("owner", marks=as_root)])
def test_nothing_in_a_folder_that_others_may_have_filled_is_run(fault: str, tmp_path: Path) -> None:
    """The server would load the extension in it, whose name can be guessed."""
    vox, folder = VoxCommand(tmp_path), tmp_path / "shared"
    planted = folder / extensions().name
    planted.mkdir(parents=True)
    (planted / "trusted.lst").touch()
    if fault == "owner":
        os.chown(folder, OTHER_USER, OTHER_USER)
    else:
        folder.chmod(0o1777)
    key = tmp_path / "sqld.pub.pem"
    key.write_text("-----BEGIN PUBLIC KEY-----\n")
    for command in (("install", "--binary", str(binary())), ("start", "--key", str(key))):
        refused = vox("server", *command, "--folder", str(folder))
        assert (refused.code, "nothing in it is run" in refused.error) == (2, True)
