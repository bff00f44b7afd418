"""The signatures of agents on relayed messages. Older nodes ignore their header."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Final

from vox_mesh.errors import BadValue
from vox_mesh.model.base.keys import signature_of_bytes, signature_to_bytes
from vox_mesh.model.messages.agent_signature import checked_signature
from vox_mesh.model.messages.records import Message

AGENT_SIGNATURES: Final = "Vox-Mesh-Agent-Signatures"
"""In the order of the messages, in base64 and separated by commas; empty for a message without one."""


def header_of(messages: Sequence[Message]) -> dict[str, str]:
    """Return the header for messages, or none if no agent has signed."""
    if all(message.agent_signature is None for message in messages):
        return {}
    signatures = (signature_to_bytes(message.agent_signature or "") for message in messages)
    return {AGENT_SIGNATURES: ",".join(base64.b64encode(each).decode() for each in signatures)}


def with_agent_signatures(messages: list[Message], header: str | None) -> list[Message]:
    """Return the messages with the signatures in a header. Raises `BadValue` if it does not fit them."""
    if header is None:
        return messages
    parts = header.split(",")
    if len(parts) != len(messages):
        raise BadValue(f"{AGENT_SIGNATURES} must have {len(messages)} parts, got {len(parts)}")
    try:
        found = [base64.b64decode(part, validate=True) for part in parts]
    except (binascii.Error, ValueError):
        raise BadValue(f"{AGENT_SIGNATURES} must be base64, separated by commas") from None
    return [
        message._replace(agent_signature=checked_signature(signature_of_bytes(each))) if each else message
        for message, each in zip(messages, found, strict=True)
    ]
