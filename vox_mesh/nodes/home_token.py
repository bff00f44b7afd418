"""The token of a home: made at the first start of a node, for all nodes and commands with the same home."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from vox_mesh.errors import BadSettings
from vox_mesh.model.base.shared_tokens import MIN_BITS, strength_bits
from vox_mesh.store.files import load_or_create, make_private

FILE: Final = "token"
"""Its file in the home."""

_RANDOM_BYTES: Final = 32
_MAX_BYTES: Final = 4_096


def new_token() -> str:
    """Return a new random token."""
    return secrets.token_hex(_RANDOM_BYTES)


def load_or_create_token(home: Path) -> str:
    """Return the token of a home, created at first use."""
    try:
        make_private(home)
        if not os.path.lexists(home / FILE):
            load_or_create(home / FILE, lambda: f"{new_token()}\n".encode())
        token = find_token(home)
    except OSError as error:
        raise BadSettings(
            f"VOX_MESH_HOME: {home / FILE} can't be used: {error.strerror}",
            hint="set it to a writable folder, such as VOX_MESH_HOME=.vox",
        ) from None
    assert token is not None
    return token


def find_token(home: Path) -> str | None:
    """Return the token of a home, or `None`; nothing is created, and no symbolic link followed."""
    path = home / FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise BadSettings(f"{path} must be a file of this user", hint=f"remove it: rm {path}")
        if stat.S_IMODE(found.st_mode) & 0o077:
            raise BadSettings(f"token file {path} can be read by others", hint=f"chmod 600 {path}")
        token = file.read(_MAX_BYTES).decode("ascii", "replace").strip()
    if strength_bits(token) < MIN_BITS or not token.isprintable():
        raise BadSettings(
            f"{path} must hold a token of at least {MIN_BITS} bits",
            hint=f"remove it: the next start makes a new one: rm {path}",
        )
    return token
