"""Ask a running node to run a command. Short commands begin here, so this imports next to nothing.

Whatever is unusual is a reason not to ask: the command then runs in this process. Which mesh is meant is only
guessed here; the command server reads the settings as the command does, and refuses those of another mesh.
"""

from __future__ import annotations

import os
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SO_PEERCRED, SOCK_CLOEXEC, SOCK_STREAM, SOL_SOCKET, socket
from stat import S_ISLNK

from vox_mesh.cli.command_server.forwarded import GUARD, forwarded_name
from vox_mesh.cli.command_server.request import (
    ENDED,
    GO,
    INTERRUPT,
    MAX_BYTES,
    READY,
    SOCKET,
    CommandRequest,
    installation,
    is_sent,
)

TYPE_CHECKING = False  # that of `typing`, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Final

SWITCH: Final = "VOX_MESH_COMMAND_SERVER"
"""The variable that turns the command server off."""

OUTCOME_UNKNOWN: Final = 3
_LOST: Final = (
    "vox-mesh: the command server of the node ended first, outcome unknown;"
    " check the current state before retrying\n"
)
_READY_S: Final = 2.0
"""How long the command server may take to get ready."""

_ON: Final = ("", "1", "true", "yes")
_UNUSUAL: Final = (
    "VOX_MESH_NODE",
    "LD_PRELOAD",
    "VOX_DEBUG",
    "PYTHONDEVMODE",
    "PYTHONWARNINGS",
    "PYTHONASYNCIODEBUG",
)
_GIT: Final = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_CEILING", "GIT_DISCOVERY", "GIT_CONFIG"),
    *("GIT_INDEX", "GIT_OBJECT", "GIT_EXEC", "GIT_PREFIX", "GIT_NAMESPACE", "GIT_IMPLICIT"),
)
"""How the variables begin that decide what git takes for the repository; the server has none of them."""

_MAX_LEVELS: Final = 64
_CREDENTIALS_BYTES: Final = 12
_REPLY_BYTES: Final = len(ENDED) + 1


def run_at_node(arguments: Sequence[str]) -> int | None:
    """Have a running node's command server run the command; return its exit code, or `None` if none does."""
    name = forwarded_name(arguments)
    if name is None or _is_unusual(name):
        return None
    try:
        for path in _sockets():
            node = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
            try:
                node.settimeout(_READY_S)
                if node.connect_ex(path) == 0:  # else it is of a node that has ended
                    return _ask(node, arguments)
            finally:
                node.close()
    except OSError:
        pass
    return None


def _is_unusual(name: str) -> bool:
    """Return whether only a process of its own can be sure to give the same output."""
    if os.environ.get(SWITCH, "") not in _ON or any(os.environ.get(each) for each in _UNUSUAL):
        return True
    if name == GUARD and any(each.startswith(_GIT) for each in os.environ):
        return True
    streams = (sys.stdout, sys.stderr)
    is_utf_8 = all(each is not None and each.encoding.lower() == "utf-8" for each in streams)
    return not is_utf_8 or sys.getfilesystemencoding() != "utf-8" or sys.flags.dev_mode


def _ask(node: socket, arguments: Sequence[str]) -> int | None:
    """Send the request; once the server is to run it, its outcome is the outcome."""
    server = node.getsockopt(SOL_SOCKET, SO_PEERCRED, _CREDENTIALS_BYTES)
    if int.from_bytes(server[4:8], sys.byteorder) != os.geteuid():
        return None
    umask = os.umask(0o077)
    os.umask(umask)
    variables = {name: value for name, value in os.environ.items() if is_sent(name)}
    request = CommandRequest(installation(), sys.stdout.errors or "strict", umask, arguments, variables)
    data = request.encode()
    if len(data) > MAX_BYTES:
        return None
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        descriptors = b"".join(each.to_bytes(4, sys.byteorder) for each in (1, 2, folder))
        sent = node.sendmsg([data], [(SOL_SOCKET, SCM_RIGHTS, descriptors)])
    finally:
        os.close(folder)
    node.sendall(data[sent:])
    if node.recv(1) != READY:
        return None
    node.settimeout(None)
    return _wait(node)


def _wait(node: socket) -> int:
    """Let the server run the command, and return its exit code."""
    reply = b""
    try:
        node.sendall(GO)
    except KeyboardInterrupt:
        _interrupt(node)
    while len(reply) < _REPLY_BYTES:
        try:
            more = node.recv(_REPLY_BYTES - len(reply))
        except KeyboardInterrupt:
            _interrupt(node)
            continue
        except OSError:
            break
        if not more:
            break
        reply += more
    if len(reply) < _REPLY_BYTES or not reply.startswith(ENDED):
        sys.stderr.write(_LOST)
        return OUTCOME_UNKNOWN
    return reply[-1]


def _interrupt(node: socket) -> None:
    try:
        node.sendall(INTERRUPT)
    except OSError:  # the next read sees it
        pass


# --- where a command server may be ---------------------------------------------------------------


def _sockets() -> Iterator[str]:
    """Yield the sockets in the home that this folder probably uses."""
    home = os.environ.get("VOX_MESH_HOME") or next(filter(os.path.isdir, _homes()), None)
    if not home:
        return
    slots = os.path.join(home, "slots")
    if not (_is_own(home) and _is_own(slots)):
        return
    own = os.environ.get("VOX_MESH_NODE_ID")
    for name in sorted(os.listdir(slots), key=lambda each: each != own):
        path = os.path.join(slots, name, SOCKET)
        if os.path.lexists(path) and _is_own(os.path.join(slots, name)) and _is_own(path):
            yield path


def _is_own(path: str) -> bool:
    """Return whether a path is of this user and no link: another's could name any socket."""
    found = os.lstat(path)
    return found.st_uid == os.geteuid() and not S_ISLNK(found.st_mode)


def _homes() -> Iterator[str]:
    """Yield where a mesh of this folder may be: upwards, next to the common git directory, the user's."""
    folder = os.getcwd()
    for _ in range(_MAX_LEVELS):
        yield os.path.join(folder, ".vox")
        git = os.path.join(folder, ".git")
        if os.path.isfile(git):
            yield from _homes_of_worktree(folder, git)
        if folder == (folder := os.path.dirname(folder)):
            break
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    yield os.path.join(data, "vox-mesh")


def _homes_of_worktree(folder: str, git: str) -> Iterator[str]:
    with open(git, "rb") as file:
        line = os.fsdecode(file.read(4_096).strip())
    if line.startswith("gitdir:"):
        common = os.path.realpath(os.path.join(folder, line[len("gitdir:") :].strip(), "..", ".."))
        yield os.path.join(os.path.dirname(common), ".vox")
        yield os.path.join(common, "vox")
