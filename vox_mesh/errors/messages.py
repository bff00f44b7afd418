"""Errors about messages and their delivery."""

from __future__ import annotations

from vox_mesh.errors.base import MeshError


class NotHolder(MeshError):
    """The message can't be acknowledged or rejected: its lease ended, or another consumer has it."""

    code = "not_holder"


class MessageTaken(MeshError):
    """Another message has this id."""

    code = "message_taken"


class SenderRefused(MeshError):
    """The signature of a message is not by the node that it names, or no key of that node is known."""

    code = "sender_refused"


class MessageExpired(MeshError):
    """A message arrived after it expired, or was sent too long ago."""

    code = "message_expired"


class RelayFailed(MeshError):
    """A node could not be reached over HTTP, or could not accept a message for now."""

    code = "relay_failed"
    retryable = True


class RelayRefused(MeshError):
    """A node rejects a relayed message for good."""

    code = "relay_refused"
