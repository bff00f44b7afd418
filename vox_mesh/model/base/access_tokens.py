"""Access tokens of a libSQL server: JSON Web Tokens, signed with Ed25519."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

import orjson

from vox_mesh.model.base.keys import SigningKey

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
