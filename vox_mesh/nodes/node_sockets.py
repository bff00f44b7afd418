"""The local sockets of the nodes of a home: where they are, and which of them is served."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from vox_mesh.store.slots import slots

FILE: Final = "http.sock"
"""The name of the socket in the folder of a node's slot."""

_CONNECT_S: Final = 2.0
_MAX_SLOTS: Final = 64


def find_served_socket(home: Path) -> Path | None:
    """Return the socket of a node of this home that accepts connections, or `None`. Blocking."""
    folders = sorted(slots(home.absolute()))[:_MAX_SLOTS]
    return next((path for folder in folders if is_served(path := folder / FILE)), None)


def is_served(path: Path) -> bool:
    """Return whether a process accepts connections at a socket. Blocking."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_CONNECT_S)
        try:
            client.connect(str(path))
        except (OSError, ValueError):  # of a node that has ended, or too long a path
            return False
    return True
