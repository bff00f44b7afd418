"""Recovery keys between the mesh and a person: shown once on a terminal, or kept in a private file."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import click

from vox_mesh.cli.support.output import show_lines
from vox_mesh.errors import BadSettings, BadValue, KeyRefused, NotKnown, Refused
from vox_mesh.model.oplog.recovery_key import SECRET_BYTES, RecoveryKey
from vox_mesh.settings.secrets import read_secret

KEY_FILE: Final = click.Path(path_type=Path)
_STDIN: Final = Path("/dev/stdin")
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_NOTHING_WRITTEN: Final = (BadSettings, BadValue, KeyRefused, NotKnown, Refused)


def can_show(*, as_json: bool) -> bool:
    """Return whether a person sees the output: elsewhere, a secret would end up in logs."""
    return sys.stdout.isatty() and not as_json


@contextmanager
def new_recovery_key(path: Path | None, home: Path, *, as_json: bool, option: str) -> Iterator[RecoveryKey]:
    """Make a recovery key for an op that is written in this context, and then show it.

    With a path it is written to that new file, before the op, and the file is removed if the op was refused.

    Raises:
        BadSettings: No person sees the output and there is no path, or the file can't be created.
    """
    key = RecoveryKey(secrets.token_bytes(SECRET_BYTES))
    if path is None:
        if not can_show(as_json=as_json):
            raise BadSettings(
                "recovery key not shown: the output is not a terminal, and may be logged",
                hint=f"pass {option} PATH, or run this at a terminal without --json",
            )
        yield key
        show_lines(_instructions(key))
        return
    _create(path, home, key, option)
    try:
        yield key
    except _NOTHING_WRITTEN:
        path.unlink()
        raise


def _create(path: Path, home: Path, key: RecoveryKey, option: str) -> None:
    if path.resolve().is_relative_to(home.resolve()):
        raise BadSettings(
            f"{option}: {path} is in the home of the mesh, and would be lost with it",
            hint="choose a path elsewhere, best on another machine",
        )
    try:
        descriptor = os.open(path, _NEW, 0o600)
    except OSError as error:
        raise BadSettings(
            f"{option}: {path} can't be created: {error.strerror}",
            hint="choose a new file in an existing folder",
        ) from None
    try:
        os.write(descriptor, f"{key.text}\n".encode())
        os.fsync(descriptor)
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        raise BadSettings(f"{option}: {path} can't be written: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _instructions(key: RecoveryKey) -> list[str]:
    return [
        "",
        "recovery key of the mesh, shown only once:",
        "",
        f"    {key.text}",
        "",
        "Keep it in a password manager or on paper, not on this machine. If the owner's disk is lost, it",
        "makes another node the owner: `vox-mesh roles recover`. A thief could take the mesh over with it.",
    ]


def given_recovery_key(path: Path | None) -> RecoveryKey:
    """Return the recovery key from a file, from standard input (`-`), or from the person at the terminal."""
    if path is not None:
        text = read_secret(_STDIN if str(path) == "-" else path, "the recovery key")
    elif sys.stdin.isatty():
        text = click.prompt("recovery key", hide_input=True, err=True)
    else:
        raise BadSettings(
            "no recovery key given: standard input is not a terminal",
            hint="pass --recovery-key-file PATH, or - to read it from standard input",
        )
    return RecoveryKey.parse(text)
