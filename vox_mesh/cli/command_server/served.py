"""A command in a forked process of the command server: it becomes the process that the caller would start."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from vox_mesh.cli.app import run
from vox_mesh.cli.command_server.forwarded import GUARD, forwarded_name
from vox_mesh.cli.command_server.request import (
    DESCRIPTORS,
    ENDED,
    GO,
    INTERRUPT,
    LENGTH_BYTES,
    MAX_BYTES,
    READY,
    REFUSED,
    BadRequest,
    CommandRequest,
    is_sent,
)
from vox_mesh.cli.support.logs import log_handler
from vox_mesh.errors import MeshError
from vox_mesh.model.base.backends import Backend
from vox_mesh.runtime.open_store import target_of
from vox_mesh.settings import load_settings
from vox_mesh.settings.quick import quick_settings
from vox_mesh.settings.secrets import SECRET_VARIABLES, take_variables

_REQUEST_S: Final = 5.0
"""How long a caller may take to send its request, and to answer."""

_INTERRUPTED_S: Final = 2.0
"""How long a command may take to end after its caller has gone."""

_STDOUT: Final = 1
_STDERR: Final = 2
_ERRORS: Final = ("strict", "surrogateescape")

_log = logging.getLogger("vox_mesh.commands")


class Served(NamedTuple):
    """The mesh that a command server serves."""

    home: Path
    target: str
    """The name of its database and scope, as `target_of` returns it."""

    installation: str
    log_format: str


class ServedCommand:
    """One command of a caller."""

    def __init__(self, caller: socket.socket, served: Served) -> None:
        self._caller = caller
        self._served = served
        self._is_over = False

    def run(self) -> int:
        """Run the command as the caller's own process would, and return its exit code."""
        began = time.monotonic()
        self._caller.settimeout(_REQUEST_S)
        try:
            request, descriptors = self._receive()
            if not self._is_served(request):
                self._caller.sendall(REFUSED)
                return 0
            self._log_to_node()
            self._become(request, descriptors)
            if not self._is_same_mesh():
                self._caller.sendall(REFUSED)
                return 0
            self._caller.sendall(READY)
            if self._caller.recv(len(GO)) != GO:
                return 0
        except (BadRequest, OSError):  # the caller runs the command itself
            return 0
        self._caller.settimeout(None)
        threading.Thread(target=self._follow_caller, name="vox-mesh-caller", daemon=True).start()
        code = run(request.arguments)
        _flush()
        self._log_call(request, code, began)
        self._is_over = True
        self._caller.sendall(ENDED + bytes([code]))
        return code

    # --- the request -----------------------------------------------------------------------------

    def _receive(self) -> tuple[CommandRequest, list[int]]:
        data, descriptors, _, _ = socket.recv_fds(self._caller, 65_536, DESCRIPTORS)
        if len(descriptors) != DESCRIPTORS:
            raise BadRequest
        size = int.from_bytes(data[:LENGTH_BYTES], "big")
        if size > MAX_BYTES:
            raise BadRequest
        while len(data) < LENGTH_BYTES + size:
            if not (more := self._caller.recv(65_536)):
                raise BadRequest
            data += more
        return CommandRequest.decode(data[LENGTH_BYTES:]), descriptors

    def _is_served(self, request: CommandRequest) -> bool:
        name = forwarded_name(request.arguments)
        if request.installation != self._served.installation or request.errors not in _ERRORS:
            return False
        return name is not None and (name != GUARD or shutil.which("git") is not None)

    def _become(self, request: CommandRequest, descriptors: list[int]) -> None:
        """Take over the caller's folder, variables and output."""
        stdout, stderr, folder = descriptors
        os.fchdir(folder)
        os.umask(request.umask & 0o777)
        for name in [each for each in os.environ if is_sent(each)]:
            del os.environ[name]
        os.environ.update(request.variables)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, place in ((nothing, 0), (stdout, _STDOUT), (stderr, _STDERR)):
            os.dup2(source, place)
        for each in (nothing, *descriptors):
            os.close(each)
        is_terminal = os.isatty(_STDOUT)
        sys.stdout = open(  # noqa: SIM115 - as long as the process
            _STDOUT,
            "w",
            encoding="utf-8",
            errors=request.errors,
            buffering=1 if is_terminal else -1,
            closefd=False,
        )
        sys.stderr = open(  # noqa: SIM115 - the same
            _STDERR, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
        )
        take_variables(SECRET_VARIABLES)

    def _is_same_mesh(self) -> bool:
        """Return whether the caller's settings name the mesh of this node; only then it may be served."""
        try:
            settings = quick_settings() or load_settings()
            if not settings.command_server or settings.backend is Backend.MEMORY:
                return False
            is_home = settings.home_dir.resolve() == self._served.home
            return is_home and target_of(settings) == self._served.target
        except (MeshError, OSError):  # the command reports it
            return False

    # --- while it runs ---------------------------------------------------------------------------

    def _follow_caller(self) -> None:
        """Pass Ctrl-C on; if the caller goes, interrupt the command, and then end it."""
        while True:
            try:
                word = self._caller.recv(1)
            except OSError:
                word = b""
            if self._is_over:
                return
            os.kill(os.getpid(), signal.SIGINT)
            if word != INTERRUPT:
                time.sleep(_INTERRUPTED_S)
                os._exit(1)

    def _log_to_node(self) -> None:
        """Log calls to the log of the node, which is this process's stderr until it is the caller's."""
        node = open(os.dup(_STDERR), "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115, PTH123
        _log.handlers = [log_handler(node, self._served.log_format)]
        _log.propagate = False
        _log.setLevel(logging.INFO)

    def _log_call(self, request: CommandRequest, code: int, began: float) -> None:
        name = forwarded_name(request.arguments)
        took_ms = (time.monotonic() - began) * 1_000
        _log.info("command served: command=%r pid=%d code=%d ms=%.0f", name, os.getpid(), code, took_ms)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
