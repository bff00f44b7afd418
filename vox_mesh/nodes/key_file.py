"""A file with a private key, created once and readable by its owner only."""

from __future__ import annotations

import base64
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vox_mesh.errors import BadSettings
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.store.files import load_or_create

if TYPE_CHECKING:  # loaded where it is used: most commands sign nothing
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_HINT: Final = "put the key back, or move the file away and have the owner run `vox-mesh nodes rekey`"
_PEM: Final = re.compile(rb"-----BEGIN PRIVATE KEY-----\n([A-Za-z0-9+/]{64})\n-----END PRIVATE KEY-----\n")
# What stands before the 32 bytes of an Ed25519 private key in PKCS #8 (RFC 8410).
_DER_PREFIX: Final = bytes.fromhex("302e020100300506032b657004220420")


def new_key() -> Ed25519PrivateKey:
    """Return a new private key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate()


def load_or_create_key(path: Path, *, hint: str = _HINT) -> SigningKey:
    """Return the key in the file, created at first use; `hint` is for a file without a valid key."""
    return _key_in(path, load_or_create(path, _new_pem), hint)


def load_key(path: Path) -> SigningKey:
    """Return the key in a file that exists."""
    try:
        return _key_in(path, path.read_bytes(), "make one with `vox-mesh agents init`")
    except OSError as error:
        raise BadSettings(
            f"key file {path} can't be read: {error.strerror}", hint="make one with `vox-mesh agents init`"
        ) from None


def _key_in(path: Path, pem: bytes, hint: str) -> SigningKey:
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise BadSettings(f"key file {path} can be read by others", hint=f"chmod 600 {path}")
    key = _usual_key(pem) or _any_key(pem)
    if key is None:
        raise BadSettings(f"{path} holds no Ed25519 key", hint=hint)
    return SigningKey(key)


def _usual_key(pem: bytes) -> bytes | None:
    """Return the bytes of a key as `_new_pem` writes it, for which no library is needed."""
    if (found := _PEM.fullmatch(pem)) is None:
        return None
    der = base64.b64decode(found[1])
    return der[len(_DER_PREFIX) :] if der.startswith(_DER_PREFIX) else None


def _any_key(pem: bytes) -> Ed25519PrivateKey | None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # a type error: it needs a password
        return None
    return key if isinstance(key, Ed25519PrivateKey) else None


def _new_pem() -> bytes:
    from cryptography.hazmat.primitives import serialization

    return new_key().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
