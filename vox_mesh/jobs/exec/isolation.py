"""Isolation: how commands are kept away from the key, the tokens and the database of their node.

A command of the node's own user can read all of its files. Therefore it runs as another user, or in a
bubblewrap sandbox: it sees no other processes, and not the files of the node.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from vox_mesh.errors import BadSettings
from vox_mesh.jobs.exec.limits import ResourceLimits
from vox_mesh.model.jobs.sandbox import Sandbox

_ROOT: Final = 0
_PROBE_S: Final = 10.0
_USER_LIMITS: Final = ResourceLimits({"nofile": 4_096, "nproc": 1_024})
"""The limits of commands with a user of their own, unless others are set."""


@dataclass(frozen=True)
class ExecUser:
    """The user that commands run as."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


@dataclass(frozen=True)
class Bubblewrap:
    """The sandbox: its program, and the files and folders that commands must not see."""

    program: str
    hidden: Callable[[], Sequence[Path]]

    def wrap(self, folder: Path, program: Path, arguments: Sequence[str]) -> list[str]:
        """Return the command line that runs a program in the sandbox.

        Raises `ValueError` if the folder is one that commands must not see.
        """
        hidden = [each.resolve() for each in self.hidden()]
        folders = [each for each in hidden if each.is_dir()]
        if _is_inside(folder.resolve(), folders):
            raise ValueError(f"the folder {folder} is one of the node's own")
        files = [each for each in hidden if each.is_file() and not _is_inside(each, folders)]
        return [
            *(self.program, *_BASE, *_devices()),
            *(word for each in folders for word in ("--tmpfs", str(each))),
            *(word for each in files for word in ("--ro-bind", "/dev/null", str(each))),
            *("--chdir", str(folder), "--", str(program), *arguments),
        ]


_BASE: Final = (
    *("--unshare-pid", "--unshare-ipc", "--cap-drop", "ALL"),
    *("--bind", "/", "/", "--proc", "/proc"),
)


def _devices() -> tuple[str, ...]:
    """Return the option for devices: root could read disks, so it gets only a few harmless ones."""
    return ("--dev", "/dev") if os.geteuid() == _ROOT else ("--dev-bind", "/dev", "/dev")


def _is_inside(path: Path, folders: Sequence[Path]) -> bool:
    return any(path.is_relative_to(each) for each in folders)


@dataclass(frozen=True)
class Isolation:
    """How commands run: as another user, in a sandbox, or as the node's user; and their limits."""

    user: ExecUser | None = None
    sandbox: Bubblewrap | None = None
    limits: ResourceLimits = field(default_factory=ResourceLimits)
    why_none: str = "no isolation was asked for"
    """Why there is neither a user nor a sandbox."""

    @property
    def is_isolated(self) -> bool:
        """Return whether commands can't read the files of their node."""
        return self.user is not None or self.sandbox is not None

    def wrap(self, folder: Path, program: Path, arguments: Sequence[str]) -> list[str] | None:
        """Return the command line that confines a program, or `None` if it is started directly.

        Raises `ValueError` if the folder is one that commands must not see.
        """
        wrapped: list[str] | None = None
        if self.sandbox is not None:
            wrapped = self.sandbox.wrap(folder, program, arguments)
        if self.limits.limits:
            first, *others = wrapped or [str(program), *arguments]
            wrapped = self.limits.launch(first, others)
        return wrapped

    @property
    def home(self) -> str:
        """Return the home of the user that commands run as."""
        if self.user is not None:
            return self.user.home
        try:
            return str(Path.home())
        except RuntimeError:  # a user without an entry, as in some containers
            return "/"

    def describe(self) -> str:
        """Return how commands run."""
        if self.user is not None:
            return f"commands run as user {self.user.name}"
        if self.sandbox is not None:
            return f"commands run in {self.sandbox.program}"
        return f"commands run as the user of the node and can read its key and tokens: {self.why_none}"


def choose_isolation(
    user: str | None, sandbox: Sandbox, limits: str | None, hidden: Callable[[], Sequence[Path]]
) -> Isolation:
    """Return the chosen isolation. Raises `BadSettings` if this machine can't provide it."""
    chosen = ResourceLimits.parsed(limits) if limits else ResourceLimits()
    if user:
        if sandbox is Sandbox.BWRAP:
            raise BadSettings(
                "VOX_WORKER_EXEC_USER and VOX_WORKER_EXEC_SANDBOX=bwrap can't be combined",
                hint="set one of them",
            )
        return Isolation(_find_user(user), limits=chosen if limits else _USER_LIMITS)
    if sandbox is Sandbox.OFF:
        return Isolation(limits=chosen, why_none="VOX_WORKER_EXEC_SANDBOX is off")
    program = shutil.which("bwrap")
    fault = "bubblewrap is not installed" if program is None else _probe(program)
    if program is not None and fault is None:
        return Isolation(sandbox=Bubblewrap(program, hidden), limits=chosen)
    if sandbox is Sandbox.BWRAP:
        raise BadSettings(
            f"VOX_WORKER_EXEC_SANDBOX: {fault}", hint="install bubblewrap, or allow user namespaces"
        )
    return Isolation(limits=chosen, why_none=str(fault))


def _find_user(name: str) -> ExecUser:
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise _bad_user(f"there is no user {name!r}", f"create it, such as useradd --system {name}") from None
    if os.geteuid() != _ROOT:
        raise _bad_user("only root can run commands as another user", "run as root, or install bubblewrap")
    if found.pw_uid == _ROOT:
        raise _bad_user("commands must not run as root", "name a user without privileges")
    # Not the supplementary groups of the user: docker, disk and the like are as good as root.
    return ExecUser(name, found.pw_uid, found.pw_gid, (), found.pw_dir)


def _bad_user(fault: str, hint: str) -> BadSettings:
    return BadSettings(f"VOX_WORKER_EXEC_USER: {fault}", hint=hint)


def _probe(program: str) -> str | None:
    """Return why the sandbox does not work on this machine, or `None` if it does."""
    try:
        done = subprocess.run(  # noqa: S603 - constant arguments
            [program, *_BASE, *_devices(), "--", "/bin/sh", "-c", ":"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} can't be run: {error}"
    if done.returncode == 0:
        return None
    return f"{program} does not work here: {' '.join(done.stderr.split())[:200]}"
