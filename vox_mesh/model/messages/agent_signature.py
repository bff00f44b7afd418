"""Signatures of agents: a sender with a key of its own signs what its message says, and to whom."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Final, NamedTuple

import orjson

from vox_mesh.errors import BadValue
from vox_mesh.model.base.keys import SigningKey, is_signature, is_signed

_KIND: Final = "vox-mesh agent message 1"


class SignedByAgent(StrEnum):
    """Whether the sender of a message has signed it with the key with which the owner admitted it.

    `absent`: there is no signature, or no key to check it by.
    """

    VERIFIED = "verified"
    ABSENT = "absent"
    WRONG = "wrong"


class AgentStatement(NamedTuple):
    """What an agent signs: that it sends this body to this receiver, in one mesh, under one id."""

    scope_id: str
    repository_id: str
    message_uuid: str
    sender_agent: str
    receiver_agent: str
    msg_type: str
    payload: str

    @property
    def text(self) -> bytes:
        """Return the signed text: a kind, the fields, and the SHA-256 of the body as canonical JSON."""
        digest = hashlib.sha256(self.payload.encode()).hexdigest()
        return orjson.dumps([_KIND, *self[:-1], digest])

    def sign(self, key: SigningKey) -> str:
        """Return the signature with the key of the sender."""
        return key.sign(self.text)

    def check(self, signature: str | None, public_key: str | None) -> SignedByAgent:
        """Return whether a signature is by this key, with which the sender was admitted."""
        if signature is None or public_key is None:
            return SignedByAgent.ABSENT
        is_genuine = is_signed(self.text, signature, public_key)
        return SignedByAgent.VERIFIED if is_genuine else SignedByAgent.WRONG


def checked_signature(text: str) -> str:
    """Return a signature of an agent; raise `BadValue` if it has not the form of one."""
    if not is_signature(text):
        raise BadValue(f"agent_signature must be ed25519: and 128 hex digits, got {text[:200]!r}")
    return text
