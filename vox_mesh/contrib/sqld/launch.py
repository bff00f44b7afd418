"""Start an installed server: authentication, durability, a private data folder, one server per folder."""

from __future__ import annotations

import fcntl
import os
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from vox_mesh.contrib.sqld.errors import DataInUse
from vox_mesh.contrib.sqld.extension import script
from vox_mesh.errors import BadSettings
from vox_mesh.store.files import make_private

_INHERITED: Final = ("PATH", "HOME", "LANG", "TMPDIR", "RUST_LOG", "SQLD_CONNECTIONS")
"""The variables that the server gets: it has no use for tokens of a mesh."""

_LOCK_DESCRIPTOR: Final = 50
"""The lock outlives this program, so its descriptor is one that the start script does not use."""

_PRIVATE: Final = 0o077
_LOGGED: Final = "warn,libsql_server::hrana::ws::conn=error"  # a client that closes first is no fault
_PUBLIC_KEY: Final = b"-----BEGIN PUBLIC KEY-----"


class Listen(NamedTuple):
    """The address at which the server listens."""

    host: IPv4Address | IPv6Address
    port: int

    @classmethod
    def parse(cls, text: str) -> Listen:
        """Read HOST:PORT. Raises `ValueError`."""
        host, separator, port = text.rpartition(":")
        host = {"localhost": "127.0.0.1"}.get(host, host)
        if not separator or not port.isdecimal() or not 1 <= int(port) <= 65_535:
            raise ValueError(f"{text!r} is not an address with a port")
        return cls(ip_address(host.removeprefix("[").removesuffix("]")), int(port))

    @property
    def is_local(self) -> bool:
        """Return whether only this machine can connect."""
        return self.host.is_loopback

    def __str__(self) -> str:
        """Return it as HOST:PORT."""
        return f"{self.host}:{self.port}" if self.host.version == 4 else f"[{self.host}]:{self.port}"


class Launch(NamedTuple):
    """All that a server is started with."""

    binary: Path
    extensions: Path
    data: Path
    listen: Listen
    key: Path
    tenants: Path | None = None

    def prepare(self) -> None:
        """Lock the data; raise if the server can't start.

        Without a key, with data that others can read or use, or at an address in use it can't.
        """
        _check_key(self.key)
        _check_data(self.data)
        _check_free(self.listen)
        _lock(self.data)

    def run(self) -> NoReturn:
        """Become the server; signals go to it directly."""
        os.umask(_PRIVATE)
        start = script("start.sh")
        os.execve("/usr/bin/env", ["env", "bash", str(start)], self._environment())  # noqa: S606 - no shell reads it

    def _environment(self) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        return {
            "RUST_LOG": _LOGGED,
            **inherited,
            "SQLD_BINARY": str(self.binary),
            "SQLD_EXTENSIONS": str(self.extensions),
            "SQLD_DATA": str(self.data),
            "SQLD_LISTEN": str(self.listen),
            "SQLD_ADMIN_PORT": str(_free_port()),
            "SQLD_KEY": str(self.key),
            "SQLD_TENANTS": str(self.tenants or ""),
        }


def _check_key(path: Path) -> None:
    make = "run `vox-mesh token create --ttl 90d > db.token`, then name its public key with --key"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadSettings(f"public key {path} can't be read: {error.strerror}", hint=make) from None
    if _PUBLIC_KEY not in content:
        raise BadSettings(f"{path} holds no public key", hint=make)


def _check_data(folder: Path) -> None:
    try:
        make_private(folder.absolute())
        status = folder.stat()
    except OSError as error:
        raise BadSettings(
            f"data folder {folder} can't be used: {error.strerror}", hint="choose another with --data"
        ) from None
    if status.st_uid != os.geteuid():
        raise BadSettings(f"data folder {folder} belongs to another user", hint="choose another with --data")
    if status.st_mode & _PRIVATE:
        raise BadSettings(f"data folder {folder} can be read by others", hint=f"chmod 700 {folder}")


def _check_free(listen: Listen) -> None:
    family = socket.AF_INET if listen.host.version == 4 else socket.AF_INET6
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((str(listen.host), listen.port))
        except OSError as error:
            raise DataInUse(
                f"the server can't listen on {listen}: {error.strerror}", hint="choose another with --listen"
            ) from None


def _lock(data: Path) -> None:
    """Lock the data folder until the server has ended: two servers would destroy the database."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(data.with_name(f"{data.name}.lock"), flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DataInUse(
            f"another server runs on {data}", hint="stop it, or choose another folder with --data"
        ) from None
    kept = fcntl.fcntl(descriptor, fcntl.F_DUPFD, _LOCK_DESCRIPTOR)
    os.set_inheritable(kept, True)
    os.close(descriptor)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
