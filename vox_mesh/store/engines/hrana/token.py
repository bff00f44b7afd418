"""What a database token says of itself."""

from __future__ import annotations

import base64
import binascii

import orjson


def is_read_only(token: str | None) -> bool:
    """Whether the token says that it may only read; whether it is genuine is the server's matter.

    Over WebSocket the server answers a forbidden write by closing the connection without a word, which
    looks like a fault; so the token is asked first.
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
