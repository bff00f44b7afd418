"""Errors about messages and their delivery."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vox_mesh.errors.base import MeshError


class NotHolder(MeshError):
    """The message can't be acknowledged or rejected: its lease ended, or another consumer has it."""

    code = "not_holder"


class MessageTaken(MeshError):
    """Another message has this id."""

    code = "message_taken"


class NotAllSent(MeshError):
    """Of messages that were sent together, some failed.

    `sent`: the others, as `send` returns them. `failed`: each failed message with its error. Both are in the
    order in which they were given.
    """

    code = "not_all_sent"

    def __init__(self, sent: Sequence[Any], failed: Sequence[tuple[Any, MeshError]]) -> None:
        _, first = failed[0]
        super().__init__(
            f"{len(failed)} of {len(sent) + len(failed)} messages failed, the first with: {first}",
            hint="see the error of each in `failed`, and send it again with its message_uuid as the key",
        )
        self.__cause__ = first
        self.sent = tuple(sent)
        self.failed = tuple(failed)


class SenderRefused(MeshError):
    """The signature of a message is not by the node that it names, or no key of that node is known."""

    code = "sender_refused"


class AgentSignatureMissing(MeshError):
    """The mesh is strict, and the sender of a message, which has a key, has not signed it: it is not sent."""

    code = "agent_signature_missing"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"message of {agent} is not signed by its key, as a strict mesh requires",
            hint=f"send it with the key of {agent}: set VOX_AGENT_KEY, or pass signed_by",
        )


class AgentSignatureWrong(MeshError):
    """The mesh is strict, and a message is not signed by the key of its sender: it is not sent."""

    code = "agent_signature_wrong"

    def __init__(self, agent: str) -> None:
        super().__init__(
            f"signature of the message is not by the key with which {agent} was admitted",
            hint="sign the id, the recipient, the type and the body as they are sent, or admit the new key",
        )


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
