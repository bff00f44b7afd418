"""Signatures of agents on their messages: checked by the key with which the owner admitted the sender."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from vox_mesh.errors import AgentSignatureMissing, AgentSignatureWrong, MeshError
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.messages.agent_signature import AgentStatement, SignedByAgent, checked_signature
from vox_mesh.model.messages.records import Message
from vox_mesh.store.slices import in_slices

if TYPE_CHECKING:  # few agents have keys
    from vox_mesh.oplog.grants.known_agents import KnownAgents


class AgentSignatures:
    """Sign messages of agents, and check signed ones; others cost nothing."""

    def __init__(self, mesh: tuple[str, str], known: Callable[[], KnownAgents]) -> None:
        self._mesh = mesh
        self._known = known

    async def add(self, message: Message, signed_by: SigningKey | str) -> Message:
        """Return a message with a signature of its sender: by this key, or made elsewhere."""
        if isinstance(signed_by, SigningKey):
            signature = self._statement(message).sign(signed_by)
        else:
            signature = checked_signature(signed_by)
        (checked,) = await self.check([message._replace(agent_signature=signature)])
        return checked

    async def check(self, messages: list[Message]) -> list[Message]:
        """Return the messages with whether their senders have signed them."""
        if all(message.agent_signature is None for message in messages):
            return messages
        known = self._known()
        keys: dict[str, str | None] = {}
        with suppress(MeshError):  # no key is known yet, and the database does not answer
            await known.refresh()
            keys = {message.sender_agent: known.key_of(message.sender_agent) for message in messages}
        return await in_slices(self._checked(message, keys.get(message.sender_agent)) for message in messages)

    def _checked(self, message: Message, public_key: str | None) -> Message:
        signed = self._statement(message).check(message.agent_signature, public_key)
        return message._replace(signed_by_agent=signed)

    async def refuse_unless_signed(self, message: Message) -> None:
        """Raise an error if the mesh is strict, and the sender has a key with which it did not sign."""
        known = self._known()
        await known.refresh()
        key = known.key_of(message.sender_agent)
        if key is None or not known.is_strict:
            return
        signed = self._statement(message).check(message.agent_signature, key)
        if signed is SignedByAgent.ABSENT:
            raise AgentSignatureMissing(message.sender_agent)
        if signed is SignedByAgent.WRONG:
            raise AgentSignatureWrong(message.sender_agent)

    def _statement(self, message: Message) -> AgentStatement:
        return AgentStatement(
            *self._mesh,
            message.message_uuid,
            message.sender_agent,
            message.receiver_agent,
            message.msg_type,
            message.payload,
        )
