"""Programs in subprocesses that need not load Python first: each is forked from a preloaded process."""

from __future__ import annotations

import asyncio
import atexit
import os
import select
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Final, Self, TextIO

from tools.fork_server import Program

ROOT: Final = Path(__file__).resolve().parents[1]
_ASKING: Final = Lock()
_END_S: Final = 10.0
_LOADED: Final = [
    *("aiohttp", "click", "httpx", "orjson", "difflib", "glob", "ctypes"),
    *("cryptography.hazmat.primitives.asymmetric.ed25519", "cryptography.hazmat.primitives.serialization"),
]
_RARE: Final = ("contrib", "testing", "cli/top", "hosts/mcp", "http/mcp", "integrations", "jobs/agents")
"""Parts of the package that few programs use: the screen alone takes longer to load than most of them run."""

_OPTIONAL: Final = "spans.py"
"""The module that needs an extra, and is loaded only where it is used."""


def load_first(*modules: str) -> None:
    """Preload these modules, too; to be called before the first program."""
    _LOADED.extend(modules)


def _own_modules(root: Path) -> list[str]:
    """Return the modules of the package that most programs use, each of which loads only some of them."""
    package = root / "vox_mesh"
    rare = {package / folder for folder in _RARE}
    common = (
        path.relative_to(root).with_suffix("")
        for path in sorted(package.rglob("[a-z]*.py"))
        if rare.isdisjoint(path.parents) and path.name != _OPTIONAL
    )
    return [".".join(path.parts) for path in common]


@cache
def _server(root: Path) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tools.fork_server", str(theirs.fileno()), *_LOADED, *_own_modules(root)],
            cwd=root,
            env=kept | {"PYTHONPATH": str(root)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C is for the parent, which ends it
        )
    atexit.register(_end, ours, process, os.getpid())
    return ours, process


def _end(line: socket.socket, process: subprocess.Popen[bytes], owner: int) -> None:
    """End the fork server, and with it the programs that still run."""
    if os.getpid() != owner:
        return  # a copy of the process that started it
    line.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def begin(root: Path = ROOT) -> None:
    """Start the fork server before the first program is requested; one for each checkout."""
    _server(root)


def fork(wanted: Program, stdin: int, stdout: int, stderr: int, root: Path = ROOT) -> int:
    """Fork a program of a checkout; return the file that reports its process id, and then the exit code."""
    ours, theirs = os.pipe()
    try:
        with _ASKING:
            wanted.send(_server(root)[0], (stdin, stdout, stderr, theirs))
    finally:
        os.close(theirs)
    return ours


class Process:
    """A running program, to be used as `subprocess.Popen`."""

    def __init__(self, wanted: Program, *, has_stdin: bool = False) -> None:
        self.stdin: TextIO | None = None
        if has_stdin:
            given, self.stdin = _pipe_to()
        else:
            given = os.open(os.devnull, os.O_RDONLY)
        self.stdout, out = _pipe_from()
        self.stderr, err = _pipe_from()
        self.returncode: int | None = None
        self._reports = os.fdopen(fork(wanted, given, out, err), buffering=1)
        for file in (given, out, err):
            os.close(file)
        self.pid = int(self._reports.readline())

    def poll(self) -> int | None:
        """Return the exit code, if it has ended."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return the exit code."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._reports], [], [], timeout)[0]:
            self.returncode = int(self._reports.readline())
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Close its input, wait for its end, and return all of its output."""
        if self.stdin:
            self.stdin.close()
        with ThreadPoolExecutor(2) as pool:
            out, err = pool.submit(self.stdout.read), pool.submit(self.stderr.read)
            try:
                self.wait(timeout)
            except BaseException:
                self.kill()
                raise
            said = out.result(), err.result()
        self._close()
        return said

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        """`kill -9`."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stdin:
            self.stdin.close()
        self.stdout.close()
        self.stderr.close()
        if kind is not None:
            self.kill()  # no reference is left to end it
        self.wait()
        self._close()

    def _close(self) -> None:
        for file in (self.stdin, self.stdout, self.stderr, self._reports):
            if file:
                file.close()


def _pipe_to() -> tuple[int, TextIO]:
    theirs, ours = os.pipe()
    return theirs, os.fdopen(ours, "w")


def _pipe_from() -> tuple[TextIO, int]:
    ours, theirs = os.pipe()
    return os.fdopen(ours), theirs


class AsyncProcess:
    """A running program, to be used as `asyncio.subprocess.Process`; its stderr may go to a file."""

    def __init__(
        self,
        pid: int,
        reports: asyncio.StreamReader,
        stdin: asyncio.WriteTransport,
        stdout: asyncio.StreamReader,
        stderr: asyncio.StreamReader | None,
    ) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None
        self._ending = asyncio.create_task(self._wait_for_end(reports))

    @classmethod
    async def start(cls, wanted: Program, stderr: int | None = None, root: Path = ROOT) -> Self:
        """Fork a program of a checkout."""
        given, stdin = os.pipe()
        stdout, out = os.pipe()
        said, err = os.pipe() if stderr is None else (None, os.dup(stderr))
        reports = fork(wanted, given, out, err, root)
        for file in (given, out, err):
            os.close(file)
        loop = asyncio.get_running_loop()
        writing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(stdin, "wb", 0))
        reader = await _reader(reports)
        pid = int(await reader.readline())
        saying = None if said is None else await _reader(said)
        return cls(pid, reader, writing, await _reader(stdout), saying)

    async def _wait_for_end(self, reports: asyncio.StreamReader) -> int:
        self.returncode = int(await reports.readline())
        await reports.read()
        self.stdin.close()
        return self.returncode

    async def wait(self) -> int:
        """Wait for its end; return the exit code."""
        return await asyncio.shield(self._ending)

    async def communicate(self) -> None:
        """Close its input, and wait until it and all processes with its output have ended."""
        self.stdin.close()
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                await stream.read()
        await self.wait()

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Terminate it."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """`kill -9`."""
        self.send_signal(signal.SIGKILL)


async def _reader(file: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(file, "rb", 0))
    return reader
