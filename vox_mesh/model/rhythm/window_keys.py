"""Window keys: short-lived credentials of the relay that replace the shared token, valid for a few bars.

However slow the tempo, a key is made for at most a minute, and accepted for at most four.

A key is text, `vxw1.<fields>.<proof>`. Its fields are project, role and bar. The proof is made with the
shared token, so a key can't be made or changed without it; an eavesdropper learns a key that expires soon,
and never the token. A key contains its bar, so it works between nodes that do not know the same tempo yet.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from enum import StrEnum
from typing import Any, Final

import orjson

from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.rhythm.tempo import LONGEST_BAR, MINUTE_MS, SLOWEST_BPM, Window

RELAY: Final = "relay"
"""The role of a node that delivers messages to another."""

MARK: Final = "vxw1."
"""The prefix of every window key; its digit is the format version."""

LONGEST_WINDOW_MS: Final = round(LONGEST_BAR * MINUTE_MS / SLOWEST_BPM)
"""The longest bar of the slowest tempo: a longer one is invalid."""

MAX_WINDOW_MS: Final = 60_000
"""The longest time that a key is made for: of a longer bar, a part."""

MAX_LATE_MS: Final = 120_000
"""The longest time that a key is accepted after its own."""

_VERSION: Final = 1
_MAX_TEXT: Final = 2_048
_MAX_MS: Final = 2**53
_KEY_BYTES: Final = 32
_PURPOSE: Final = b"vox-mesh window key"

Project = tuple[str, str]
"""Scope and repository."""


class WindowKeyFault(StrEnum):
    """Why a window key is rejected."""

    WRONG = "wrong"
    """It was not made with this token, or was changed."""
    PROJECT = "project"
    ROLE = "role"
    EARLY = "early"
    STALE = "stale"


def window_of_key(bar: Window, now_ms: int) -> Window:
    """Return the window of the key to use now: the bar, or its current part if it is long."""
    start_ms = bar.start_ms + (now_ms - bar.start_ms) // MAX_WINDOW_MS * MAX_WINDOW_MS
    return Window(start_ms, min(bar.end_ms, start_ms + MAX_WINDOW_MS))


def issue(secret: str, project: Project, role: str, window: Window) -> str:
    """Return the key of a window: a bar, or a part of it."""
    scope_id, repository_id = project
    fields = {
        "version": _VERSION,
        "scope": scope_id,
        "repository": repository_id,
        "role": role,
        "start_ms": window.start_ms,
        "end_ms": window.end_ms,
    }
    data = canonical(fields).encode()
    proof = hmac.digest(_derive_key(secret, data), data, hashlib.sha256)
    return f"{MARK}{_encode(data)}.{_encode(proof)}"


def check(
    secret: str, token: str, project: Project, role: str, now_ms: int, revoke_after_bars: int
) -> WindowKeyFault | None:
    """Return the fault of a key, or `None` if it is valid.

    It is valid from one bar before its own, for nodes whose clock is behind, until `revoke_after_bars` after
    it; but whatever the tempo, for no longer than a minute before its window of at most a minute, and two
    minutes after it. A longer window, as older nodes use it at a slow tempo, counts as stale.
    """
    fields = _parse_fields(token)
    if fields is None:
        return WindowKeyFault.WRONG
    window = Window(fields["start_ms"], fields["end_ms"])
    named = (fields["scope"], fields["repository"])
    # Compare the whole text with a new key: each key has exactly one text.
    if not hmac.compare_digest(token.encode(), issue(secret, named, fields["role"], window).encode()):
        return WindowKeyFault.WRONG
    if named != project:
        return WindowKeyFault.PROJECT
    if fields["role"] != role:
        return WindowKeyFault.ROLE
    length_ms = window.end_ms - window.start_ms
    if length_ms > MAX_WINDOW_MS:
        return WindowKeyFault.STALE
    if now_ms < window.start_ms - length_ms:
        return WindowKeyFault.EARLY
    late_ms = min(revoke_after_bars * length_ms, MAX_LATE_MS)
    return None if now_ms < window.end_ms + late_ms else WindowKeyFault.STALE


def role_of(token: str) -> str | None:
    """Return the role that a well-formed key names, else `None`. Nothing is verified by that."""
    fields = _parse_fields(token)
    return None if fields is None else fields["role"]


def _parse_fields(token: str) -> dict[str, Any] | None:
    """Return the fields of a well-formed key with a valid bar, else `None`. Nothing is verified by that."""
    if not (token.startswith(MARK) and token.isascii() and len(token) <= _MAX_TEXT):
        return None
    try:
        part = token[len(MARK) :].partition(".")[0]
        fields = orjson.loads(base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, orjson.JSONDecodeError):
        return None
    if not isinstance(fields, dict) or fields.get("version") != _VERSION:
        return None
    texts = [fields.get(name) for name in ("scope", "repository", "role")]
    start_ms, end_ms = fields.get("start_ms"), fields.get("end_ms")
    if (
        not all(isinstance(text, str) for text in texts)
        or type(start_ms) is not int
        or type(end_ms) is not int
    ):
        return None
    is_bar = -_MAX_MS < start_ms < end_ms < _MAX_MS and end_ms - start_ms <= LONGEST_WINDOW_MS
    return fields if is_bar else None


def _derive_key(secret: str, data: bytes) -> bytes:
    """Return the proof's key, valid only for this project, role and bar. It does not reveal the token."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length=_KEY_BYTES, salt=_PURPOSE, info=data).derive(secret.encode())


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
