"""Tokens of agents: for hosts that can only be given a fixed text. The mesh keeps a hash of each."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any, Final, NamedTuple

from vox_mesh.model.base.canonical import canonical, parse

MARK: Final = "vxa1."
"""The prefix of every token of an agent; its digit is the format version."""

SECRET_BYTES: Final = 32
_TEXT: Final = re.compile(r"vxa1\.([0-9A-Z]{26})\.[A-Za-z0-9_-]{43}", re.ASCII)


class AgentToken(NamedTuple):
    """A token of an agent, as the mesh knows it."""

    token_id: str
    agent: str
    digest: str
    until_ms: int

    @property
    def payload(self) -> str:
        """Return the payload of the op that issues it. Its id is that of the op."""
        return canonical({"agent": self.agent, "digest": self.digest, "until": self.until_ms})

    def is_issued_by(self, payload: str) -> bool:
        """Return whether an op with this payload issues it."""
        read: Any = parse(payload)
        return bool(read == parse(self.payload))


def token_text(token_id: str, secret: bytes) -> str:
    """Return the text of a token. The secret is random, so that its hash needs no salt."""
    return f"{MARK}{token_id}.{base64.urlsafe_b64encode(secret).rstrip(b'=').decode()}"


def token_id_of(text: str) -> str | None:
    """Return the id that a well-formed token names, else `None`."""
    found = _TEXT.fullmatch(text)
    return None if found is None else found[1]


def digest_of(text: str) -> str:
    """Return the hash by which a token is known."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
