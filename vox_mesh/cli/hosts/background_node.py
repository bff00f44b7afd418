"""A node of the mesh in the background: started by `vox-mesh setup`, since hooks need one that answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from vox_mesh.errors import BadSettings
from vox_mesh.http.local_socket import MAX_PATH_BYTES
from vox_mesh.nodes.node_sockets import FILE as SOCKET
from vox_mesh.nodes.node_sockets import find_served_socket
from vox_mesh.store.files import replace_private
from vox_mesh.store.slots import slot_folder

LOG: Final = "node.log"
_RECORD: Final = "node.json"
_START_S: Final = 60.0
_STOP_S: Final = 15.0
_POLL_S: Final = 0.05
_MAX_LOG_BYTES: Final = 4 << 20
_SHOWN_BYTES: Final = 2_000
_NEW_LOG: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


def is_node_running(home: Path) -> bool:
    """Return whether a node of this home accepts connections at its local socket."""
    return find_served_socket(home) is not None


def start_node(home: Path, project: Path, environment: Mapping[str, str]) -> int:
    """Start a node that outlives this process, wait until it answers, and return its process id.

    Its log is in the home. Raises `BadSettings` with the end of the log if it does not come up.
    """
    home, log = home.absolute(), home.absolute() / LOG
    _refuse_long(home)
    if log.exists() and log.stat().st_size > _MAX_LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
    descriptor = os.open(log, _NEW_LOG, 0o600)
    began = os.lseek(descriptor, 0, os.SEEK_END)
    # -P: files of the project must not be imported as modules.
    command = [sys.executable, "-P", "-m", "vox_mesh.cli", "up", "--home-dir", str(home)]
    try:
        node = subprocess.Popen(  # noqa: S603 - fixed arguments
            command,
            cwd=project,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    _record(home, node.pid)
    deadline = time.monotonic() + _START_S
    while not is_node_running(home):
        if node.poll() is not None or time.monotonic() > deadline:
            raise _not_up(log, began)
        time.sleep(_POLL_S)
    return node.pid


def _refuse_long(home: Path) -> None:
    """Raise `BadSettings` if the path of a home is too long for a socket: hooks would not find the node."""
    size = len(os.fsencode(slot_folder(home) / SOCKET))
    if size > MAX_PATH_BYTES:
        raise BadSettings(
            f"path of the local socket must have at most {MAX_PATH_BYTES} bytes, got {size}: {home}",
            hint="move the project to a shorter path, or set VOX_MESH_HOME to one",
        )


def stop_node(home: Path) -> int | None:
    """Stop the node that was started here, and return its process id; `None` if there is none."""
    node = _recorded(home)
    (home / _RECORD).unlink(missing_ok=True)
    if node is None:
        return None
    try:
        node.send_signal(signal.SIGTERM)
        node.wait(_STOP_S)
    except psutil.TimeoutExpired:
        raise BadSettings(
            f"node did not stop within {_STOP_S:.0f} s: process {node.pid}", hint="stop it by hand"
        ) from None
    except psutil.NoSuchProcess:
        return None
    return node.pid


def _record(home: Path, pid: int) -> None:
    """Keep the process id with the time of its start: the system gives ids again."""
    path = home / _RECORD
    try:
        document = {"pid": pid, "started": psutil.Process(pid).create_time()}
    except psutil.NoSuchProcess:  # it has ended at once, which is seen next
        return
    replace_private(path, json.dumps(document).encode(), path.with_suffix(".new"))


def _recorded(home: Path) -> psutil.Process | None:
    """Return the process of the record, if it still runs."""
    try:
        document = json.loads((home / _RECORD).read_bytes())
        node = psutil.Process(int(document["pid"]))
        return node if node.create_time() == document["started"] else None
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return None


def _not_up(log: Path, began: int) -> BadSettings:
    with log.open("rb") as file:
        file.seek(max(began, log.stat().st_size - _SHOWN_BYTES))
        lines = file.read().decode(errors="replace").split("\n")
    said = next((line for line in reversed(lines) if line.strip()), "nothing in its log")
    return BadSettings(f"node did not start: {said}", hint=f"see {log}, then run `vox-mesh up`")
