"""Ed25519 keys and signatures as text: `ed25519:<hex>`."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # loaded where it is used: a read-only command needs no keys
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_PREFIX: Final = "ed25519:"
_PUBLIC: Final = re.compile(r"ed25519:[0-9a-f]{64}")
_SIGNATURE: Final = re.compile(r"ed25519:[0-9a-f]{128}")

# The points of small order, without their sign: their signatures can be made without any secret.
_WEAK: Final = frozenset(
    {
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    }
)


class SigningKey:
    """A private key that signs, and its public half."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public: Final = _PREFIX + key.public_key().public_bytes_raw().hex()

    def sign(self, message: bytes) -> str:
        """Return the signature of the message."""
        return _PREFIX + self._key.sign(message).hex()


def is_public_key(text: str) -> bool:
    """Return whether `text` is a public key, and not a weak one."""
    if not _PUBLIC.fullmatch(text):
        return False
    point = bytes.fromhex(text[len(_PREFIX) :])
    return (point[:-1] + bytes([point[-1] & 0x7F])).hex() not in _WEAK


def is_signed(message: bytes, signature: str, public_key: str) -> bool:
    """Return whether this is the key's signature of the message."""
    from cryptography.exceptions import InvalidSignature

    if not (_SIGNATURE.fullmatch(signature) and is_public_key(public_key)):
        return False
    try:
        _public(public_key).verify(bytes.fromhex(signature[len(_PREFIX) :]), message)
    except InvalidSignature:
        return False
    return True


@lru_cache(maxsize=1_024)
def _public(text: str) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(bytes.fromhex(text[len(_PREFIX) :]))
