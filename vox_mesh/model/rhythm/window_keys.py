"""Window keys: what one node shows another at the relay instead of the shared token, good for a few bars.

A key is text, `vxw1.<fields>.<proof>`. It says what it is for: project, role and bar. The proof is
made with the shared token, so nobody without it can make a key or change one; whoever listens learns a key
that is soon over, and never the token. It carries its bar itself: nodes that do not know of the same tempo
yet understand each other all the same.
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
"""The role of a node that brings messages to another."""

MARK: Final = "vxw1."
"""What every window key begins with; its digit is the version of all that follows."""

LONGEST_WINDOW_MS: Final = round(LONGEST_BAR * MINUTE_MS / SLOWEST_BPM)
"""The longest bar of the slowest tempo: what says more is no bar."""

_VERSION: Final = 1
_MAX_TEXT: Final = 2_048
_MAX_MS: Final = 2**53
_KEY_BYTES: Final = 32
_PURPOSE: Final = b"vox-mesh window key"

Project = tuple[str, str]
"""Scope and repository."""


class WindowKeyFault(StrEnum):
    """Why a window key is not accepted."""

    WRONG = "wrong"
    """Nobody with this token made it, or not as it stands."""
    PROJECT = "project"
    ROLE = "role"
    EARLY = "early"
    STALE = "stale"


def issue(secret: str, project: Project, role: str, window: Window) -> str:
    """The key of a bar."""
    scope_id, repository_id = project
    fields = {
        "version": _VERSION,
        "scope": scope_id,
        "repository": repository_id,
        "role": role,
        "start_ms": window.start_ms,
        "end_ms": window.end_ms,
    }
    said = canonical(fields).encode()
    return f"{MARK}{_text(said)}.{_text(hmac.digest(_derived(secret, said), said, hashlib.sha256))}"


def check(
    secret: str, token: str, project: Project, role: str, now_ms: int, revoke_after_bars: int
) -> WindowKeyFault | None:
    """What is wrong with a key, if anything.

    It is good from one bar before its own, for those whose clock is behind, until so many bars after it.
    """
    said = _fields(token)
    if said is None:
        return WindowKeyFault.WRONG
    window = Window(said["start_ms"], said["end_ms"])
    named = (said["scope"], said["repository"])
    # Made again and compared as a whole: there is one text of a key, and no other that means the same.
    if not hmac.compare_digest(token.encode(), issue(secret, named, said["role"], window).encode()):
        return WindowKeyFault.WRONG
    if named != project:
        return WindowKeyFault.PROJECT
    if said["role"] != role:
        return WindowKeyFault.ROLE
    length_ms = window.end_ms - window.start_ms
    if now_ms < window.start_ms - length_ms:
        return WindowKeyFault.EARLY
    return None if now_ms < window.end_ms + revoke_after_bars * length_ms else WindowKeyFault.STALE


def _fields(token: str) -> dict[str, Any] | None:
    """What a key says of itself, if it is a key at all and its bar is one. Nothing is proven by that."""
    if not (token.startswith(MARK) and token.isascii() and len(token) <= _MAX_TEXT):
        return None
    try:
        part = token[len(MARK) :].partition(".")[0]
        said = orjson.loads(base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, orjson.JSONDecodeError):
        return None
    if not isinstance(said, dict) or said.get("version") != _VERSION:
        return None
    texts = [said.get(name) for name in ("scope", "repository", "role")]
    start_ms, end_ms = said.get("start_ms"), said.get("end_ms")
    if (
        not all(isinstance(text, str) for text in texts)
        or type(start_ms) is not int
        or type(end_ms) is not int
    ):
        return None
    is_bar = -_MAX_MS < start_ms < end_ms < _MAX_MS and end_ms - start_ms <= LONGEST_WINDOW_MS
    return said if is_bar else None


def _derived(secret: str, said: bytes) -> bytes:
    """The key of the proof: of no use for another project, role or bar, and telling nothing of the token."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length=_KEY_BYTES, salt=_PURPOSE, info=said).derive(secret.encode())


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
