"""A file with a private key, created once and readable by its owner only."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vox_mesh.errors import BadSettings
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.store.files import load_or_create

_HINT: Final = "put the key back, or move the file away and have the owner run `vox-mesh nodes rekey`"


def new_key() -> Ed25519PrivateKey:
    """Return a new private key."""
    return Ed25519PrivateKey.generate()


def load_or_create_key(path: Path, *, hint: str = _HINT) -> SigningKey:
    """Return the key in the file, created at first use; `hint` is for a file without a valid key."""
    pem = load_or_create(path, _new_pem)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise BadSettings(f"key file {path} can be read by others", hint=f"chmod 600 {path}")
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # a type error: it needs a password
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise BadSettings(f"{path} holds no Ed25519 key", hint=hint)
    return SigningKey(key)


def _new_pem() -> bytes:
    return new_key().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
