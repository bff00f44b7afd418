"""A real libSQL server on loopback: token required, safe flags, removed without a trace."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tools.install_sqld import binary, extensions
from vox_mesh.model.base.keys import SigningKey, public_pem, signed_token
from vox_mesh.nodes.key_file import new_key

_START_S: Final = 60.0
_END_S: Final = 90.0
# Without a checkpoint interval the server checkpoints on commit, and many short-lived streams wedge it.
_SAFE_FLAGS: Final = ("--checkpoint-interval-s", "60", "--max-concurrent-connections", "256")


def wait_for_start(answers: Callable[[], bool], is_running: Callable[[], bool]) -> None:
    """Wait until a server that was started answers; raise `RuntimeError` if it ends or takes too long."""
    deadline = time.monotonic() + _START_S
    while not answers():
        if time.monotonic() > deadline or not is_running():
            raise RuntimeError("sqld did not start")
        time.sleep(0.02)


def is_healthy(url: str) -> bool:
    """Return whether a server answers at this URL."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1.0) as response:
            return bool(response.status == 200)
    except OSError:
        return False


class Server:
    """One server, one port, one folder: it can be killed, paused and started again in the same place."""

    def __init__(
        self,
        *,
        flags: tuple[str, ...] = _SAFE_FLAGS,
        more_flags: tuple[str, ...] = (),
        auth: bool = True,
        has_file_access: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._flags = (*flags, *more_flags)
        self._environment = dict(environment or {})
        self._auth = auth
        self._has_file_access = has_file_access
        self._key = SigningKey(new_key())
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    @cached_property
    def _folder(self) -> Path:
        """The folder, created on first use: a server that only makes a token leaves nothing behind."""
        return Path(tempfile.mkdtemp(prefix="vox-sqld-"))

    @property
    def database_folder(self) -> Path:
        """The folder of the database, its log and the snapshots of the log."""
        return self._folder / "data" / "dbs" / "default"

    @property
    def token(self) -> str:
        """Return a token that may read and write."""
        return self.token_with({"a": "rw"})

    def token_with(self, claims: dict[str, object]) -> str:
        """Return a token of this server's key with these claims."""
        return signed_token(self._key, claims)

    def key_file(self) -> Path:
        """Return a file with the public key of the tokens."""
        path = self._folder / "key.pem"
        path.write_bytes(public_pem(self._key))
        return path

    def start(self) -> Self:
        """Start, and wait until it answers."""
        self.launch()
        self.wait_until_healthy()
        return self

    def wait_until_healthy(self) -> None:
        """Wait until it answers, after `launch`."""
        try:
            wait_for_start(self._answers, lambda: self._process is not None and self._process.poll() is None)
        except RuntimeError as error:
            log = (self._folder / "log").read_text(errors="replace")[-2_000:]
            self.stop()
            raise RuntimeError(f"{error} on port {self.port}:\n{log}") from None

    def _answers(self) -> bool:
        return is_healthy(self.url)

    def launch(self) -> None:
        """Start without waiting."""
        command = [str(binary()), "--db-path", str(self.data), "--no-welcome"]
        command += ["--http-listen-addr", f"127.0.0.1:{self.port}", *self._flags]
        if not self._has_file_access:
            command += ["--extensions-path", str(extensions())]
        if self._auth:
            command += ["--auth-jwt-key-file", str(self.key_file())]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "RUST_LOG": "warn", **self._environment},
            )

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """`kill -9`, as a power switch would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def end(self, grace_s: float = _END_S) -> None:
        """Terminate it, and kill it if it does not end in this time, as a service manager would.

        A server that ends by itself keeps its log; one that is killed begins another.
        """
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    @property
    def data(self) -> Path:
        """The folder of its database."""
        return self._folder / "data"

    def triggers(self) -> set[str]:
        """Return the names of the triggers in its database."""
        statement = {"sql": "SELECT name FROM sqlite_master WHERE type = 'trigger'"}
        body = {"requests": [{"type": "execute", "stmt": statement}]}
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v2/pipeline", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=_START_S) as answer:
            (result,) = json.load(answer)["results"]
        return {name["value"] for (name,) in result["response"]["result"]["rows"]}

    def copy_data(self, to: Path) -> None:
        """Copy all of its files, as a snapshot of its volume would."""
        shutil.copytree(self.data, to)

    def put_back(self, kept: Path) -> None:
        """Kill it, replace its files with such a copy, and start it again."""
        self.kill()
        shutil.rmtree(self.data)
        shutil.copytree(kept, self.data)
        self.start()

    def freeze(self) -> None:
        """Pause it: connections stay open and nothing responds."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)  # a busy machine takes its time to stop all threads

    def thaw(self) -> None:
        """Resume it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the server and remove its files."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def free_port() -> int:
    """Return a free port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
