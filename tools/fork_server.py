"""A process with preloaded modules, which forks itself for each requested program.

`python -m tools.fork_server SOCKET MODULE…`. A forked process is like any other: it can be paused and killed,
and shares nothing. Only the time to load Python and these modules is saved.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Final, NoReturn

FILES: Final = 4
"""Sent with each program: stdin, stdout, stderr, and where to report the process id and later the exit code.
"""

_LENGTH: Final = 4


@dataclass(frozen=True)
class Program:
    """A program as for `python -m MODULE` or `python -c CODE`, with exactly these variables."""

    arguments: tuple[str, ...]
    variables: dict[str, str]
    module: str = ""
    code: str = ""
    folder: str = field(default_factory=os.getcwd)

    def send(self, line: socket.socket, files: tuple[int, ...]) -> None:
        """Send it to a server."""
        text = json.dumps(asdict(self)).encode()
        socket.send_fds(line, [len(text).to_bytes(_LENGTH, "big")], files)
        line.sendall(text)

    def run(self) -> None:
        """Run that program in this process."""
        os.environ.clear()
        os.environ.update(self.variables)
        os.chdir(self.folder)
        sys.argv = [self.module or "-c", *self.arguments]
        if self.module:
            runpy.run_module(self.module, run_name="__main__", alter_sys=True)
        else:
            sys.modules["__main__"] = module = ModuleType("__main__")
            exec(compile(self.code, "<string>", "exec"), vars(module))

    def run_to_the_end(self) -> NoReturn:
        """Run that program and exit as it would, without the exit handlers of the parent."""
        code = 0
        try:
            self.run()
        except SystemExit as end:
            code = _exit_code(end.code)
        except KeyboardInterrupt:
            traceback.print_exc()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        except BaseException:
            traceback.print_exc()
            code = 1
        finally:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError):
                    stream.flush()
            os._exit(code)


def _exit_code(given: object) -> int:
    """Return the exit code as Python defines it: a number, 0 for nothing, 1 for a message."""
    if given is None or isinstance(given, int):
        return given or 0
    print(given, file=sys.stderr)
    return 1


def _received(line: socket.socket) -> tuple[Program, list[int]] | None:
    head, files, _, _ = socket.recv_fds(line, _LENGTH, FILES)
    if not head:
        return None
    with line.makefile("rb", buffering=0) as stream:
        text, length = bytearray(), int.from_bytes(head, "big")
        while len(text) < length:
            if not (piece := stream.read(length - len(text))):
                return None  # the client is gone
            text += piece
    given = json.loads(text)
    return Program(**given | {"arguments": tuple(given["arguments"])}), files


def _report(report_fd: int, number: int) -> None:
    with suppress(BrokenPipeError):  # the client is gone
        os.write(report_fd, f"{number}\n".encode())


class _Server:
    """Serves one client process, and ends with it."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._report_fds: dict[int, int] = {}
        """By process id, the file to which its end is reported."""

    def serve(self) -> Program | None:
        """Fork requested programs. Returns in each forked process, and when the client is gone."""
        ended, ending = os.pipe()
        os.set_blocking(ending, False)
        old = signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(ending, warn_on_full_buffer=False)
        wanted: Program | None = None
        with closing(self._line):
            while wanted is None:
                ready, _, _ = select.select([ended, self._line.fileno()], [], [])
                if ended in ready:
                    os.read(ended, 4_096)
                    self._report_ends()
                if self._line.fileno() in ready:
                    received = _received(self._line)
                    if received is None:
                        break
                    wanted = self._forked(*received)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, old)
        os.close(ended)
        os.close(ending)
        if wanted is None:
            self._leave_nobody()
        return wanted

    def _forked(self, wanted: Program, files: list[int]) -> Program | None:
        """Return, in the new process, the program to run."""
        *standard, report_fd = files
        pid = os.fork()
        if pid:
            _report(report_fd, pid)
            self._report_fds[pid] = report_fd
        else:
            for place, file in enumerate(standard):
                os.dup2(file, place)
            for file in (report_fd, *self._report_fds.values()):
                os.close(file)
        for file in standard:
            os.close(file)
        return None if pid else wanted

    def _report_ends(self) -> None:
        with suppress(ChildProcessError):
            while (end := os.waitpid(-1, os.WNOHANG))[0]:
                report_fd = self._report_fds.pop(end[0])
                _report(report_fd, os.waitstatus_to_exitcode(end[1]))
                os.close(report_fd)

    def _leave_nobody(self) -> None:
        for pid in self._report_fds:
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Serve until the client ends; or run one of the requested programs."""
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()
    wanted = _Server(socket.socket(fileno=int(sys.argv[1]))).serve()
    if wanted:
        wanted.run_to_the_end()


if __name__ == "__main__":
    main()
