"""Sending: sign a message, store it, and relay it to the node of its receiver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from vox_mesh.errors import MessageTaken, Refused
from vox_mesh.messages.relay_buffer import RelayBuffer
from vox_mesh.messages.relay_outbound import Outbox, Route
from vox_mesh.messages.scripts import id_taken, send_guarded, send_script, send_with, sql
from vox_mesh.messages.signatures import Signing
from vox_mesh.model.messages.records import Message, MessageState
from vox_mesh.nodes.identity import key_refused
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Outcome, Statement
from vox_mesh.store.store import Store

_OPLOG: Final = named("oplog")
_KEY_REFUSED: Final = "key_refused"

MakeStatements = Callable[[Message], Sequence[Statement]]
"""Returns the statements that take effect together with a message."""


class MessageSender:
    """Send the messages of one process."""

    def __init__(self, store: Store, writer: OpLogWriter, relay_buffer: RelayBuffer) -> None:
        self._store = store
        self._mesh = store.mesh_id
        self._writer = writer
        self._relay_buffer = relay_buffer
        self._is_chain_open = False
        self.signing = Signing(self._mesh)
        self.outbox: Outbox | None = None
        """Relays to other nodes; `None` if this process does not take part in the relay."""

    async def send(
        self, unsigned: Message, *, route: Route, timeout: float | None, statements: MakeStatements | None
    ) -> Message:
        """Sign and store a message, and relay it unless it is a command's."""
        identity = self._writer.identity
        message = await self.signing.sign(unsigned, identity.key)
        extra = () if statements is None else statements(message)
        if not self._is_chain_open:
            await self._open_chain(timeout)
        if identity.is_command:
            await self._store_for_command(message, extra, timeout)
            return message
        if extra:
            outcome = await self._store_with(message, extra, timeout)
        else:
            outcome = await self.store(message, timeout)
        if self.outbox is not None:
            self.outbox.offer(message, stored=not outcome.spooled, route=route)
        else:
            self._relay_buffer.nudge(message.receiver_agent, message.message_uuid)
        return message._replace(state=MessageState.SPOOLED) if outcome.spooled else message

    # --- storing ---------------------------------------------------------------------------------

    async def _open_chain(self, timeout: float | None) -> None:
        """Open the chain before the first message if it is empty: recipients know the key by it."""
        if not (self._writer.is_chain_open or await self._has_command_chain(timeout)):
            await self._store.write(self._writer.open_script(), timeout=timeout)
        self._is_chain_open = True

    async def _has_command_chain(self, timeout: float | None) -> bool:
        identity = self._writer.identity
        if not identity.is_command:
            return False
        values = (*self._mesh, identity.node_id, identity.chain)
        return bool(await self._store.read(_OPLOG["is_open"], values, fresh=True, timeout=timeout))

    async def store(self, message: Message, timeout: float | None) -> Outcome:
        """Store a signed message; it is spooled while the database is unreachable."""
        outcome = await self._store.write(send_script(message), timeout=timeout)
        if not outcome.rows and not outcome.spooled:
            # Another message has its id, or this process was superseded: this raises which.
            await self._store_guarded(message, (), timeout)
        return outcome

    async def _store_guarded(
        self, message: Message, guards: Sequence[Statement], timeout: float | None
    ) -> None:
        outcome = await self._store.write(send_guarded(self._mesh, message, *guards), timeout=timeout)
        if not outcome.rows:
            raise id_taken(message)

    async def _store_with(
        self, message: Message, statements: Sequence[Statement], timeout: float | None
    ) -> Outcome:
        """Store a message together with statements, or neither. It is never spooled."""
        try:
            return await self._store.write(send_with(self._mesh, message, statements), timeout=timeout)
        except Refused as refused:
            if refused.reason != MessageTaken.code:
                raise
            raise id_taken(message) from None

    async def _store_for_command(
        self, message: Message, statements: Sequence[Statement], timeout: float | None
    ) -> None:
        """Store a command's message, if it has the key known for its node or none is known yet."""
        identity = self._writer.identity
        key, chain = identity.key.public, identity.chain
        values = (*self._mesh, identity.node_id, chain, key)
        guards = (Statement(sql("refuse_other_key"), values, refusal=_KEY_REFUSED),)
        for may_drop_keys in (True, False):
            try:
                if statements:
                    await self._store_with(message, (*guards, *statements), timeout)
                else:
                    await self._store_guarded(message, guards, timeout)
                return
            except Refused as refused:
                if refused.reason != _KEY_REFUSED:
                    raise
                drop = self._writer.drop_planted_keys
                if not may_drop_keys or drop is None or not await drop(self._store.write):
                    raise key_refused(identity.node_id, key) from None
