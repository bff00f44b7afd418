"""Read the claims of a database token."""

from __future__ import annotations

import base64
import binascii

import orjson


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
