"""Ed25519 keys and signatures as text (`ed25519:<hex>`), access tokens, and signatures of several texts."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from vox_mesh.errors import BadValue

if TYPE_CHECKING:  # loaded where it is used: a read-only command needs no keys
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


PUBLIC_KEY_FORM: Final = "ed25519:<64 hexadecimal digits>"
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

    def __init__(self, key: Ed25519PrivateKey | bytes) -> None:
        """`key`: the key itself or its 32 bytes, with which the library is loaded at the first use."""
        self._given = key

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        if not isinstance(self._given, bytes):
            return self._given
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self._given)

    @cached_property
    def public(self) -> str:
        """Return the public key."""
        return _PREFIX + self._key.public_key().public_bytes_raw().hex()

    def sign(self, message: bytes) -> str:
        """Return the signature of the message."""
        return _PREFIX + self._key.sign(message).hex()


def is_public_key(text: str) -> bool:
    """Return whether `text` is a public key, and not a weak one."""
    if not _PUBLIC.fullmatch(text):
        return False
    point = bytes.fromhex(text[len(_PREFIX) :])
    return (point[:-1] + bytes([point[-1] & 0x7F])).hex() not in _WEAK


def checked_public_key(text: str, *, hint: str = "") -> str:
    """Return a public key; raise `BadValue` if it is none."""
    if not is_public_key(text):
        raise BadValue(f"public key must be {PUBLIC_KEY_FORM}, got {text!r:.100}", hint=hint)
    return text


def is_signature(text: str) -> bool:
    """Return whether `text` has the form of a signature."""
    return _SIGNATURE.fullmatch(text) is not None


def signature_to_bytes(text: str) -> bytes:
    """Return the bytes of a signature; none for what has not its form."""
    return bytes.fromhex(text[len(_PREFIX) :]) if is_signature(text) else b""


def signature_of_bytes(data: bytes) -> str:
    """Return the signature that has these bytes."""
    return _PREFIX + data.hex()


def is_signed(message: bytes, signature: str, public_key: str) -> bool:
    """Return whether this is the key's signature of the message."""
    from cryptography.exceptions import InvalidSignature

    if not (is_signature(signature) and is_public_key(public_key)):
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


# --- access tokens -------------------------------------------------------------------------------


_HEAD: Final = {"alg": "EdDSA", "typ": "JWT"}
# The DER prefix of an Ed25519 public key (RFC 8410).
_DER_PREFIX: Final = bytes.fromhex("302a300506032b6570032100")


def access_token(key: SigningKey, *, read_only: bool, now_s: int, expires_s: int) -> str:
    """Return a token that lets its bearer read, or read and write, until `expires_s`."""
    # A token without `a` may write, so it is always set.
    return signed_token(key, {"a": "ro" if read_only else "rw", "iat": now_s, "exp": expires_s})


def signed_token(key: SigningKey, claims: Mapping[str, Any]) -> str:
    """Return a token with these claims."""
    signed = f"{_part(orjson.dumps(_HEAD))}.{_part(orjson.dumps(claims))}"
    return f"{signed}.{_part(_bytes(key.sign(signed.encode())))}"


def public_pem(key: SigningKey) -> bytes:
    """Return the public key in PEM, as the server expects it; several may be concatenated."""
    body = base64.b64encode(_DER_PREFIX + _bytes(key.public))
    return b"-----BEGIN PUBLIC KEY-----\n" + body + b"\n-----END PUBLIC KEY-----\n"


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.partition(":")[2])


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def is_read_only(token: str | None) -> bool:
    """Return whether the token claims read-only access. The server verifies the token, not this function.

    Over WebSocket the server answers a forbidden write by closing the connection without a reason, which
    looks like a fault; so the token is checked first.
    """
    return _claims(token).get("a") == "ro"


def _claims(token: str | None) -> dict[str, object]:
    if token is None or token.count(".") != 2:
        return {}
    body = token.split(".")[1]
    try:
        claims = orjson.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (binascii.Error, orjson.JSONDecodeError):
        return {}
    return claims if isinstance(claims, dict) else {}


# --- batch signatures ----------------------------------------------------------------------------


MAX_TEXTS: Final = 64
"""The maximum number of texts with one signature: each path has a hash for every doubling."""

_PATH: Final = re.compile(r"(?:[lr][0-9a-f]{64}){1,6}")
_STEP_LENGTH: Final = 65
MAX_LENGTH: Final = 137 + 6 * _STEP_LENGTH
"""The maximum length of a signature with its path."""

_LEAF: Final = b"\0"
_INNER: Final = b"\1"
"""Prefixes of what is hashed, so that no inner hash can be taken for that of a text."""


class Tree(NamedTuple):
    """The hash of all texts, and the path of each to it."""

    root: str
    paths: list[str]


def merkle_tree(texts: Sequence[bytes]) -> Tree:
    """Return the Merkle tree of these texts."""
    assert 1 < len(texts) <= MAX_TEXTS
    paths = [""] * len(texts)
    row = [(_hash(_LEAF + text), [index]) for index, text in enumerate(texts)]
    while len(row) > 1:
        above = []
        for (left, on_left), (right, on_right) in zip(row[::2], row[1::2], strict=False):
            for index in on_left:
                paths[index] += "r" + right.hex()
            for index in on_right:
                paths[index] += "l" + left.hex()
            above.append((_hash(_INNER + left + right), on_left + on_right))
        if len(row) % 2:
            above.append(row[-1])  # it goes up alone, and its path is shorter by one
        row = above
    return Tree(row[0][0].hex(), paths)


def join_signature(signature: str, path: str) -> str:
    """Return the signature that one of the texts carries."""
    return f"{signature}+{path}"


def split_signature(signature: str, text: bytes) -> tuple[str, str | None]:
    """Return the signature itself and, if it is shared, the root that this text leads to."""
    own, plus, path = signature.partition("+")
    if not plus or not _PATH.fullmatch(path):
        return signature, None
    digest = _hash(_LEAF + text)
    for start in range(0, len(path), _STEP_LENGTH):
        sibling = bytes.fromhex(path[start + 1 : start + _STEP_LENGTH])
        digest = _hash(_INNER + (sibling + digest if path[start] == "l" else digest + sibling))
    return own, digest.hex()


def _hash(data: bytes) -> bytes:
    return hashlib.sha3_256(data).digest()
