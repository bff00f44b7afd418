"""Tokens of a libSQL server: JSON Web Tokens, signed with Ed25519 by whoever may let others in."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import orjson

from vox_mesh.model.base.keys import SigningKey

_HEAD: Final = {"alg": "EdDSA", "typ": "JWT"}
# What stands before the 32 bytes of an Ed25519 key where its kind has to be told (RFC 8410).
_KIND: Final = bytes.fromhex("302a300506032b6570032100")


def access_token(key: SigningKey, *, read_only: bool, now_s: int, expires_s: int) -> str:
    """A token that lets its bearer read, or read and write, until then."""
    # A token without `a` may write: it is always said.
    return signed_token(key, {"a": "ro" if read_only else "rw", "iat": now_s, "exp": expires_s})


def signed_token(key: SigningKey, claims: Mapping[str, Any]) -> str:
    """A token with these claims."""
    signed = f"{_part(orjson.dumps(_HEAD))}.{_part(orjson.dumps(claims))}"
    return f"{signed}.{_part(_bytes(key.sign(signed.encode())))}"


def public_pem(key: SigningKey) -> bytes:
    """The public half, as the server wants it: it may be given several, one after another."""
    body = base64.b64encode(_KIND + _bytes(key.public))
    return b"-----BEGIN PUBLIC KEY-----\n" + body + b"\n-----END PUBLIC KEY-----\n"


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.partition(":")[2])


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
