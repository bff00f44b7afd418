"""Sending: sign a message, store it, and relay it to the node of its receiver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from vox_mesh.errors import MessageTaken, NotGranted, OutcomeUnknown, Refused
from vox_mesh.messages.acts import sending_acts, sending_uses
from vox_mesh.messages.agent_signatures import AgentSignatures
from vox_mesh.messages.relay_buffer import RelayBuffer
from vox_mesh.messages.relay_outbound import Outbox, Route
from vox_mesh.messages.scripts import id_taken, send_guarded, send_script, send_with, sql
from vox_mesh.messages.signatures import ProvenSignatures, Signing
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.base.reserved import MESH_AGENT
from vox_mesh.model.messages.records import Message, MessageState
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.identity import key_refused
from vox_mesh.observability import tracing
from vox_mesh.oplog.grants.permit import MESH_GRANT, MESH_PERMIT, Permit
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Outcome, Statement
from vox_mesh.store.store import Store

_OPLOG: Final = named("oplog")
_KEY_REFUSED: Final = "key_refused"

_TimeLeft = Callable[[], float | None]
"""Returns how many seconds are left for a message, whose writes share its timeout; `None`: the usual ones."""

StoreGuarded = Callable[[Message, Sequence[Statement], _TimeLeft], Awaitable[Outcome]]
"""Stores a message after statements that may refuse it."""

MakeStatements = Callable[[Message], Sequence[Statement]]
"""Returns the statements that take effect together with a message."""


def _unlimited() -> None:
    return None


class MessageSender:
    """Send the messages of one process."""

    def __init__(
        self,
        store: Store,
        writer: OpLogWriter,
        clock: MeshClock,
        relay_buffer: RelayBuffer,
        permits: Permits,
        agent_signatures: AgentSignatures,
        proven: ProvenSignatures,
        monotonic: Callable[[], float],
    ) -> None:
        self._monotonic = monotonic
        self._permits = permits
        self._agent_signatures = agent_signatures
        self._store = store
        self._mesh = store.mesh_id
        self._writer = writer
        self._clock = clock
        self._relay_buffer = relay_buffer
        self._is_chain_open = False
        self.signing = Signing(self._mesh, proven)
        self.outbox: Outbox | None = None
        """Relays to other nodes; `None` if this process does not take part in the relay."""

    async def send(
        self,
        draft: Message,
        route: Route,
        timeout: float | None,
        statements: MakeStatements | None = None,
        signed_by: SigningKey | str | None = None,
        permit: Permit | None = None,
    ) -> Message:
        """Give a draft its time and signatures, store it, and relay it unless it is a command's.

        Without a permit, that of its sender is looked for.
        """
        left_s = self._time_left(timeout)
        identity = self._writer.identity  # loaded first: the clock ticks in its name
        with self.signing, tracing.sending(draft.traceparent, draft.receiver_agent) as carried:
            unsigned = draft.with_origin(
                str(self._clock.tick(self._clock.now_ms)),
                identity.node_id,
                self._writer.incarnation,
                draft.traceparent or carried,
            )
            if signed_by is not None:
                unsigned = await self._agent_signatures.add(unsigned, signed_by)
            message = await self.signing.sign(unsigned, identity.key)
            try:
                outcome = await self._store_for_sender(message, left_s, statements, permit)
            except (OutcomeUnknown, asyncio.CancelledError):
                if self.outbox is not None:
                    self.outbox.note_doubtful(message)
                raise
            if identity.is_command:
                return message
            if self.outbox is not None:
                self.outbox.offer(message, stored=not outcome.spooled, route=route)
            else:
                self._relay_buffer.nudge(message.receiver_agent, message.message_uuid)
        return message._replace(state=MessageState.SPOOLED) if outcome.spooled else message

    # --- storing ---------------------------------------------------------------------------------

    def _time_left(self, timeout: float | None) -> _TimeLeft:
        if timeout is None:
            return _unlimited
        deadline = self._monotonic() + timeout
        return lambda: max(0.0, deadline - self._monotonic())

    async def _store_for_sender(
        self,
        message: Message,
        left_s: _TimeLeft,
        make_statements: MakeStatements | None,
        permit: Permit | None,
    ) -> Outcome:
        extra = () if make_statements is None else make_statements(message)
        if not self._is_chain_open:
            await self._open_chain(left_s)
        if permit is not None:
            return await self._write(message, extra, left_s, permit)
        known = self._permits.known(message.sender_agent)
        if known is not None:
            with suppress(NotGranted):  # it needs a grant by now
                return await self._write(message, extra, left_s, known)
            self._permits.expect_grants(message.sender_agent)
        store = partial(self._write, message, extra, left_s)
        return await self._permitted(message, store, must_sign=make_statements is None)

    async def _open_chain(self, left_s: _TimeLeft) -> None:
        """Open the chain before the first message if it is empty: recipients know the key by it."""
        if not (self._writer.is_chain_open or await self._has_command_chain(left_s)):
            await self._store.write(self._writer.open_script(), timeout=left_s())
        self._is_chain_open = True

    async def _has_command_chain(self, left_s: _TimeLeft) -> bool:
        identity = self._writer.identity
        if not identity.is_command:
            return False
        values = (*self._mesh, identity.node_id, identity.chain)
        return bool(await self._store.read(_OPLOG["is_open"], values, fresh=True, timeout=left_s()))

    async def store_relayed(self, message: Message) -> Outcome:
        """Store a message that the node of its sender could not store itself."""
        if message.sender_agent == MESH_AGENT:
            return await self._write(message, (), _unlimited, MESH_PERMIT)

        async def store(permit: Permit) -> Outcome:
            return await self._write(message, (), _unlimited, permit._replace(node_id=message.sender_node))

        return await self._permitted(message, store, must_sign=True)

    async def _permitted(
        self, message: Message, store: Callable[[Permit], Awaitable[Outcome]], *, must_sign: bool
    ) -> Outcome:
        """Store a message by the permit of its sender, which is looked for if the message is refused.

        `must_sign`: the sender wrote it, so that a strict mesh requires its signature, as it requires a
        grant. Otherwise the node wrote it for an operation of the sender.
        """

        async def store_signed(permit: Permit) -> Outcome:
            if must_sign and permit.grant_id is not None:
                await self._agent_signatures.refuse_unless_signed(message)
            return await store(permit)

        return await self._permits.attempt(
            lambda: sending_acts(message.receiver_agent),
            store_signed,
            agent=message.sender_agent,
            is_logged=False,
        )

    async def _write(
        self, message: Message, extra: Sequence[Statement], left_s: _TimeLeft, permit: Permit
    ) -> Outcome:
        if permit.limits is not None:
            permit = permit.using(lambda: sending_uses(message))
        is_command = self._writer.identity.is_command
        if extra or permit.usage or is_command:
            statements = (*permit.guards, *extra)
            store = self._store_with if extra else self._store_guarded
            if is_command:
                return await self._store_for_command(message, statements, left_s, store)
            return await store(message, statements, left_s)
        grant = MESH_GRANT if permit.mesh is None else permit.grant_id
        outcome = await self._store.write(send_script(message, grant), timeout=left_s())
        if not outcome.rows and not outcome.spooled:
            # It has no grant, another message has its id, or this process was superseded: this raises which.
            await self._store_guarded(message, permit.guards, left_s)
        return outcome

    async def _store_guarded(
        self, message: Message, guards: Sequence[Statement], left_s: _TimeLeft
    ) -> Outcome:
        outcome = await self._store.write(send_guarded(self._mesh, message, *guards), timeout=left_s())
        if not outcome.rows:
            raise id_taken(message)
        return outcome

    async def _store_with(
        self, message: Message, statements: Sequence[Statement], left_s: _TimeLeft
    ) -> Outcome:
        """Store a message together with statements, or neither. It is never spooled."""
        try:
            return await self._store.write(send_with(self._mesh, message, statements), timeout=left_s())
        except Refused as refused:
            if refused.reason != MessageTaken.code:
                raise
            raise id_taken(message) from None

    async def _store_for_command(
        self, message: Message, statements: Sequence[Statement], left_s: _TimeLeft, store: StoreGuarded
    ) -> Outcome:
        """Store a command's message, if it has the key known for its node or none is known yet."""
        identity = self._writer.identity
        key, chain = identity.key.public, identity.chain
        values = (*self._mesh, identity.node_id, chain, key)
        guard = Statement(sql("refuse_other_key"), values, refusal=_KEY_REFUSED)
        may_drop_keys = True
        while True:
            try:
                return await store(message, (guard, *statements), left_s)
            except Refused as refused:
                if refused.reason != _KEY_REFUSED:
                    raise
                drop = self._writer.drop_planted_keys
                if not may_drop_keys or drop is None or not await drop(self._store.write):
                    raise key_refused(identity.node_id, key) from None
                may_drop_keys = False
