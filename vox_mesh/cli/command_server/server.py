"""The command server: a process of a node that has all commands loaded and forks one for each request.

A request is read by the forked process, so that nothing a caller sends can harm the server. The server ends
with its node: its stdin is a pipe from the node, which ends with it.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import select
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Final

from vox_mesh.cli.command_server.request import SOCKET, installation
from vox_mesh.cli.command_server.served import Served, ServedCommand
from vox_mesh.cli.support.logs import set_up_logs
from vox_mesh.http.local_socket import LocalSocket

_log = logging.getLogger("vox_mesh.command_server")  # this module is `__main__`

_PRELOADED: Final = (
    *(
        "vox_mesh.cli.app",
        "vox_mesh.cli.node.agents",
        "vox_mesh.cli.database.conflicts",
        "vox_mesh.cli.jobs.crons",
    ),
    *(
        "vox_mesh.cli.jobs.job",
        "vox_mesh.cli.jobs.kinds",
        "vox_mesh.cli.jobs.rules",
        "vox_mesh.cli.jobs.worker",
    ),
    *("vox_mesh.cli.locks.guard", "vox_mesh.cli.locks.lock", "vox_mesh.cli.messages.messages"),
    *(
        "vox_mesh.cli.messages.send",
        "vox_mesh.cli.node.nodes",
        "vox_mesh.cli.node.roles",
        "vox_mesh.settings.settings",
    ),
    *("vox_mesh.settings.trust", "vox_mesh.locks.locks", "vox_mesh.messages.messages"),
    *(
        "vox_mesh.jobs.jobs",
        "vox_mesh.jobs.scheduling.crons",
        "vox_mesh.jobs.kinds",
        "vox_mesh.occ.conflicts",
    ),
    *("vox_mesh.nodes.key_file", "vox_mesh.oplog.oplog", "vox_mesh.oplog.past", "vox_mesh.oplog.roles"),
    *("vox_mesh.oplog.ownership", "vox_mesh.oplog.trusted_keys", "vox_mesh.oplog.pending_ops"),
    *("vox_mesh.rhythm.rhythm", "vox_mesh.store.engines.file", "vox_mesh.runtime.open_store"),
    *("cryptography.hazmat.primitives.asymmetric.ed25519", "concurrent.futures.thread", "subprocess"),
)
"""The modules that forwarded commands use; what is missing here is loaded by each command."""

_MAX_RUNNING: Final = 32
"""Commands at a time; further callers run theirs themselves."""

_BACKLOG: Final = 64
_PAUSE_S: Final = 0.05
_NODE: Final = 0
"""The descriptor of the pipe from the node."""

_CREDENTIALS: Final = struct.Struct("3i")


class CommandServer:
    """Accepts callers of the same user until the node ends."""

    def __init__(self, listening: socket.socket, served: Served) -> None:
        self._listening = listening
        self._served = served
        self._running: set[int] = set()

    def run(self) -> None:
        """Serve until the node ends or SIGTERM."""
        wakeup, signalled = socket.socketpair()
        for each in (wakeup, signalled):
            each.setblocking(False)
        signal.set_wakeup_fd(signalled.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        waiting = (_NODE, self._listening.fileno(), wakeup.fileno())
        while True:
            ready, _, _ = select.select(waiting, [], [])
            if _NODE in ready:
                return
            if wakeup.fileno() in ready:
                wakeup.recv(4_096)
                self._reap()
            if self._listening.fileno() in ready:
                self.accept()

    def _reap(self) -> None:
        while self._running:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._running.discard(pid)
            if os.WIFSIGNALED(status):
                _log.warning("command ended by a signal: pid=%d signal=%d", pid, os.WTERMSIG(status))

    def accept(self) -> None:
        """Fork a process for the next caller, if it is of this user and not one too many."""
        try:
            caller, _ = self._listening.accept()
        except OSError as error:  # the caller has gone, or there are too many open files
            _log.warning("caller not accepted: %s", error.strerror)
            time.sleep(_PAUSE_S)
            return
        with caller:
            user = user_of(caller)
            if user != os.geteuid():
                _log.warning("command of another user refused: uid=%d", user)
                return
            if len(self._running) >= _MAX_RUNNING:
                _log.warning("too many commands, the caller runs its own: limit=%d", _MAX_RUNNING)
                return
            try:
                pid = os.fork()
            except OSError as error:  # of memory or of processes
                _log.warning("no process for a command, the caller runs its own: %s", error.strerror)
                return
            if pid == 0:
                self._serve(caller)
            self._running.add(pid)

    def _serve(self, caller: socket.socket) -> None:
        """Run the command in this process, a child of the server, and end it."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._listening.close()  # else callers would still find it after the end of the server
            code = ServedCommand(caller, self._served).run()
        except BaseException:
            _log.exception("command failed to start")
        finally:
            os._exit(code)


def user_of(caller: socket.socket) -> int:
    """Return the user at the other end."""
    packed = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(packed)[1])


def main(home: str, slot_folder: str, target: str, log_format: str) -> None:
    """Load everything, then serve."""
    set_up_logs(log_format)
    served = Served(Path(home), target, installation(), log_format)  # before the modules: they may be newer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in [each for each in os.environ if each.startswith("GIT_")]:
        del os.environ[name]
    for name in _PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # else a collection in a child would copy all pages
    local = LocalSocket(Path(slot_folder), SOCKET, without="commands run by themselves")
    listening = local.listen(_BACKLOG)
    if listening is None:
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    _log.info("command server ready: socket=%s", local.path)
    try:
        CommandServer(listening, served).run()
    finally:
        local.remove()


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
