"""Messages from other scopes: checked against the trust of this scope, and stored once."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from vox_mesh.errors import (
    BadStatement,
    BadValue,
    MeshError,
    MessageTaken,
    Refused,
    Unreachable,
)
from vox_mesh.messages.outbound import MAX_OPEN, SQL
from vox_mesh.messages.relay_inbound import check_fields, check_payload
from vox_mesh.messages.scripts import Mesh, send_with
from vox_mesh.messages.signatures import ProvenSignatures, Signing
from vox_mesh.model.messages.records import Message, checked_receiver, checked_sender
from vox_mesh.model.messages.scope_address import ScopeAddress
from vox_mesh.store.script import Script, Statement

if TYPE_CHECKING:
    from vox_mesh.messages.messages import Messages
    from vox_mesh.nodes.clock import MeshClock
    from vox_mesh.oplog.grants.permits import Permits
    from vox_mesh.oplog.roles import Roles
    from vox_mesh.oplog.writer import OpLogWriter
    from vox_mesh.store.store import Store

_TRUST_CHANGED: Final = "trust_changed"
_ARRIVED: Final = "arrived_before"
_FULL: Final = "inbox_full"
_BEHIND: Final = "behind_another"
_NEVER: Final = (BadStatement, BadValue)


class Fate(StrEnum):
    """What became of a message at the scope of its recipient."""

    STORED = "stored"
    REFUSED = "refused"
    """It will never be stored."""
    POSTPONED = "postponed"
    """Nothing was decided: the same message may be offered again."""
    FULL = "full"
    """It may be offered again when messages before it were received."""


class ArrivalVerdict(NamedTuple):
    """What became of a message, and why it was not stored."""

    fate: Fate
    reason: str = ""


class ScopeInbox:
    """Take in messages of trusted scopes, as a node of the scope of their recipients.

    The node signs them: their recipient sees `AGENT@SCOPE` as the sender, on the word of this node,
    which has checked the signature of the sender's node in the sender's scope.
    """

    def __init__(
        self,
        store: Store,
        writer: OpLogWriter,
        clock: MeshClock,
        messages: Messages,
        roles: Roles,
        permits: Permits,
    ) -> None:
        self._store = store
        self._mesh: Mesh = store.mesh_id
        self._writer = writer
        self._clock = clock
        self._messages = messages
        self._roles = roles
        self._permits = permits
        self._signing = Signing(self._mesh, ProvenSignatures())

    async def take(
        self, origin: str, owner_key: str | None, messages: Sequence[Message], now_ms: int
    ) -> list[ArrivalVerdict]:
        """Store messages of a scope whose owner has this key; `now_ms` is the time there.

        A message that arrived before is stored already. Raises `DatabaseUnavailable`.
        """
        if self._writer.incarnation is None or not self._writer.is_chain_open:
            raise Unreachable("this node is not registered in the scope of the recipient yet")
        self._clock.refuse_if_off()
        await self._permits.refuse_unless_strict()
        trusted = await self._roles.trusted_scopes()
        if owner_key is None or trusted.keys.get(origin) != owner_key:
            is_known = origin in trusted.keys
            reason = f"scope {origin} has another owner than the trusted one" if is_known else "not trusted"
            return [ArrivalVerdict(Fate.REFUSED, f"refused by scope {self._mesh[0]}: {reason}")] * len(
                messages
            )
        await self._messages.queries.learn_time()
        offered: list[Script | ArrivalVerdict] = []
        last: dict[tuple[str, str], str] = {}  # of each pair, the message that must arrive before the next
        for message in messages:
            try:
                signed = await self._signed(origin, message, now_ms)
            except BadValue as error:
                offered.append(ArrivalVerdict(Fate.REFUSED, f"refused by scope {self._mesh[0]}: {error}"))
            else:
                offered.append(self._script(origin, signed, trusted.mark, last.get(message.pair)))
                last[message.pair] = message.message_uuid
        return await self._store_all(offered)

    async def _store_all(self, offered: Sequence[Script | ArrivalVerdict]) -> list[ArrivalVerdict]:
        outcomes = iter(await self._store.write_all([each for each in offered if isinstance(each, Script)]))
        verdicts: list[ArrivalVerdict] = []
        for each in offered:
            outcome = each if isinstance(each, ArrivalVerdict) else next(outcomes)
            if isinstance(outcome, MeshError):
                verdicts.append(self._verdict_of(outcome))
            else:
                verdicts.append(
                    outcome if isinstance(outcome, ArrivalVerdict) else ArrivalVerdict(Fate.STORED)
                )
        return verdicts

    def _verdict_of(self, error: MeshError) -> ArrivalVerdict:
        reason = error.reason if isinstance(error, Refused) else ""
        if reason == _ARRIVED:
            return ArrivalVerdict(Fate.STORED)
        if reason == MessageTaken.code:
            return ArrivalVerdict(Fate.REFUSED, f"its id is that of another message in scope {self._mesh[0]}")
        if reason == _FULL:
            return ArrivalVerdict(Fate.FULL, f"the inbox has {MAX_OPEN} messages in scope {self._mesh[0]}")
        if isinstance(error, _NEVER):
            return ArrivalVerdict(Fate.REFUSED, f"refused by scope {self._mesh[0]}: {error}")
        return ArrivalVerdict(Fate.POSTPONED, error.line)

    async def _signed(self, origin: str, message: Message, now_ms: int) -> Message:
        """Return the message as this node sends it in this scope. Raises `BadValue` if that can't be."""
        check_fields(message)  # a node of the other scope may have written anything
        check_payload(message)
        address = ScopeAddress.parse(message.receiver_agent)
        if address is None:
            raise BadValue("the recipient names no scope")
        shift_ms = self._clock.now_ms - now_ms  # each database has a clock of its own
        identity = self._writer.identity
        unsigned = message._replace(
            sender_agent=checked_sender(str(ScopeAddress(message.sender_agent, origin))),
            receiver_agent=checked_receiver(address.inbox),
            expires_ms=_shifted(message.expires_ms, shift_ms),
            ack_by_ms=_shifted(message.ack_by_ms, shift_ms),
            hlc=str(self._clock.tick(self._clock.now_ms)),
            sender_node=identity.node_id,
            sender_incarnation=self._writer.incarnation,
            agent_signature=None,  # it is of another mesh
        )
        with self._signing:
            return await self._signing.sign(unsigned, identity.key)

    def _script(self, origin: str, message: Message, mark: str | None, before: str | None) -> Script:
        arrival = (*self._mesh, origin, message.message_uuid)
        statements = [
            Statement(SQL["refuse_unless_last_trust"], (*self._mesh, mark), refusal=_TRUST_CHANGED),
            Statement(SQL["refuse_if_arrived"], arrival, refusal=_ARRIVED),
            Statement(SQL["refuse_if_full"], (*self._mesh, message.receiver_agent, MAX_OPEN), refusal=_FULL),
            Statement(SQL["record_arrival"], arrival),
        ]
        if before is not None:
            values = (*self._mesh, origin, before)
            statements.insert(0, Statement(SQL["refuse_unless_arrived"], values, refusal=_BEHIND))
        return send_with(self._mesh, message, statements)


def _shifted(time_ms: int | None, shift_ms: int) -> int | None:
    return None if time_ms is None else time_ms + shift_ms
