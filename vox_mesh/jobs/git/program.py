"""The `git` program: each call has a deadline, a bound on what it reads, and runs no hooks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from vox_mesh.errors import MeshError

_TIMEOUT_S: Final = 120.0
_MAX_ERROR_BYTES: Final = 2**16
_PIECE: Final = 2**16
_MAX_SHOWN: Final = 300

_OVERRIDES: Final = (
    *("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.logAllRefUpdates=false"),
    *("core.filesRefLockTimeout=2000", "core.packedRefsTimeout=5000"),
    *("protocol.allow=never", "gc.auto=0", "maintenance.auto=false", "credential.helper="),
)
_VARIABLES: Final = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ALLOW_PROTOCOL": "none",  # a missing object of a partial clone is missing: nothing is fetched
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C",
    # Else git's C library may give memory back to the system and take it again for each object it compresses.
    "MALLOC_MMAP_THRESHOLD_": str(4 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
}
_USER_CONFIG: Final = "GIT_CONFIG_GLOBAL"
"""The one variable of git that is passed on: the user's own settings name the folders that they trust."""


class GitFailed(MeshError):
    """A git command failed, or did not end in time."""

    code = "git_failed"


async def run_git(
    program: str,
    folder: Path,
    *arguments: str,
    limit: int,
    stdin: bytes = b"",
    variables: Mapping[str, str] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> bytes:
    """Run git in a folder and return its output. Raises `GitFailed` if it fails, hangs or writes too much."""
    command = next(each for each in arguments if each[0].isalpha() and "=" not in each)
    overrides = [part for each in _OVERRIDES for part in ("-c", each)]
    try:
        process = await asyncio.create_subprocess_exec(
            *(program, *overrides, "-C", str(folder), *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**_environment(os.environ), **(variables or {})},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # too many arguments, or a null byte in one
        raise GitFailed(f"git can't be run: {error}") from None
    try:
        async with asyncio.timeout(timeout_s):
            output, errors, _ = await asyncio.gather(
                _read(process.stdout, limit, command),
                _read_start(process.stderr),
                _write(process.stdin, stdin),
            )
            code = await process.wait()
    except TimeoutError:
        raise GitFailed(f"git {command} did not end within {timeout_s:g} s") from None
    finally:
        await _end(process)
    if code != 0:
        raise GitFailed(_message(errors) or f"git {command} ended with {code}")
    return output


async def _read(stream: asyncio.StreamReader | None, limit: int, command: str) -> bytes:
    assert stream is not None
    parts: list[bytes] = []
    size = 0
    while part := await stream.read(_PIECE):
        parts.append(part)
        size += len(part)
        if size > limit:
            raise GitFailed(f"git {command} wrote more than {limit} bytes")
    return b"".join(parts)


async def _read_start(stream: asyncio.StreamReader | None) -> bytes:
    """Read all complaints, and return the first ones."""
    assert stream is not None
    start = b""
    while part := await stream.read(_PIECE):
        start = (start + part)[:_MAX_ERROR_BYTES]
    return start


async def _write(stream: asyncio.StreamWriter | None, content: bytes) -> None:
    assert stream is not None
    with suppress(ConnectionError):  # a program that fails does not read to the end
        for at in range(0, len(content), _PIECE):
            stream.write(content[at : at + _PIECE])
            await stream.drain()
    with suppress(ConnectionError):
        stream.close()
        await stream.wait_closed()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of git: a hook or a caller may have set others that lead elsewhere."""
    kept = {name: value for name, value in given.items() if not name.startswith("GIT_")}
    if _USER_CONFIG in given:
        kept[_USER_CONFIG] = given[_USER_CONFIG]
    return kept | _VARIABLES


def _message(errors: bytes) -> str:
    """Return what git complained about, on one line."""
    lines = errors.decode(errors="replace").split("\n")
    # The first complaint: what follows is help, or the report of a crash.
    first = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[0])
    shown = "".join(each if each.isprintable() else "?" for each in first.strip())
    return shown.partition(": ")[2][:_MAX_SHOWN] or shown[:_MAX_SHOWN]
