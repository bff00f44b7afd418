"""The start of a database server: no other user of the machine gets its keys or has it run programs."""

from __future__ import annotations

import os
import socket
from typing import Final

import pytest

from tests.deploy.test_server import ScriptedServer
from tests.support.running.confined import IS_ROOT, OTHER_USER

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
