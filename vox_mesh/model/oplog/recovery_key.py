"""The recovery key: a secret, written down by a person, that makes another node the owner of a mesh."""

from __future__ import annotations

import hashlib
from typing import Final

from vox_mesh.errors import BadValue
from vox_mesh.model.base.keys import SigningKey

SECRET_BYTES: Final = 16
"""The length of the secret: 128 bits, as many as an Ed25519 key is worth."""

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_MISREAD: Final = str.maketrans({"o": "0", "i": "1", "l": "1", "-": None, " ": None, "\t": None, "\n": None})
_PREFIX: Final = "voxr"
_GROUP: Final = 4
_CHECKSUM_BYTES: Final = 4
_LETTERS: Final = (SECRET_BYTES + _CHECKSUM_BYTES) * 8 // 5
_CHECK: Final = b"vox-mesh recovery key checksum\n"
_DERIVE: Final = b"vox-mesh recovery key\n"


class RecoveryKey:
    """The secret, its text form, and the key that it stands for in a mesh."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != SECRET_BYTES:
            raise BadValue(f"secret of a recovery key must have {SECRET_BYTES} bytes, got {len(secret)}")
        self._secret = secret

    def __repr__(self) -> str:
        return "RecoveryKey(…)"  # it may end up in a log

    @classmethod
    def parse(cls, text: str) -> RecoveryKey:
        """Return the key of a text; case, blanks and hyphens do not matter, nor letters like digits."""
        letters = text.lower().translate(_MISREAD).strip()
        letters = letters.removeprefix(_PREFIX.translate(_MISREAD))
        if len(letters) != _LETTERS or not set(letters) <= set(_ALPHABET):
            raise _unreadable(f"it must be {_PREFIX} and {_LETTERS // _GROUP} groups of {_GROUP} letters")
        number = 0
        for letter in letters:
            number = number * len(_ALPHABET) + _ALPHABET.index(letter)
        data = number.to_bytes(SECRET_BYTES + _CHECKSUM_BYTES, "big")
        secret = data[:SECRET_BYTES]
        if data[SECRET_BYTES:] != _checksum(secret):
            raise _unreadable("its checksum does not match")
        return cls(secret)

    @property
    def text(self) -> str:
        """Return the text that a person keeps."""
        number = int.from_bytes(self._secret + _checksum(self._secret), "big")
        letters = "".join(_ALPHABET[(number >> shift) & 31] for shift in range(5 * (_LETTERS - 1), -1, -5))
        groups = [letters[start : start + _GROUP] for start in range(0, _LETTERS, _GROUP)]
        return "-".join([_PREFIX, *groups])

    def signing_key(self, owner_key: str) -> SigningKey:
        """Return the key that it stands for in a mesh with this owner.

        In a log that another key has begun it is another one: so it can't be used to vouch for that log.
        """
        return SigningKey(hashlib.sha3_256(_DERIVE + self._secret + owner_key.encode()).digest())


def _checksum(secret: bytes) -> bytes:
    return hashlib.sha3_256(_CHECK + secret).digest()[:_CHECKSUM_BYTES]


def _unreadable(reason: str) -> BadValue:
    return BadValue(f"recovery key can't be read: {reason}", hint="check it for mistyped or missing letters")
