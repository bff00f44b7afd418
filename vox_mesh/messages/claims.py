"""Claims: messages leased to one consumer, and what the consumer does with them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from vox_mesh.errors import BadValue, MeshError, NotHolder, Refused, Unreachable
from vox_mesh.messages.ack_queue import AckQueue, AckVerdicts, OpenLoop, QueuedAck
from vox_mesh.messages.agent_signatures import AgentSignatures
from vox_mesh.messages.scripts import (
    ack_on_arrival_script,
    ack_script,
    bury_script,
    claim_one_script,
    claim_script,
    json,
    nack_script,
    release_claim_script,
    release_script,
    renew_script,
    sql,
    sql_for_inboxes,
)
from vox_mesh.messages.signatures import SenderVerifier
from vox_mesh.model.base.durations import Duration, checked_seconds
from vox_mesh.model.base.histogram import LONG_S, Histogram
from vox_mesh.model.messages.records import Message, in_turn
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.observability import tracing
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Script, Verdict, new_key
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

LEASE_S: Final = 120.0
MIN_LEASE_S: Final = 0.1
MAX_LEASE_S: Final = 86_400.0
MAX_CLAIMED: Final = 256
MAX_PER_PAIR: Final = 64
_MAX_BATCH_BYTES: Final = 2**20
_RELEASE_TIMEOUT_S: Final = 2.0
_READ_TIMEOUT_S: Final = 3.0
_MAX_RETRY_DELAY_S: Final = 60.0


class Prospect(NamedTuple):
    """Whether there is anything to claim, and otherwise when there will be, by the database's clock.

    `only`: the id of the only message, if it is also the only one of its pair.
    """

    is_free: bool
    next_ms: int | None = None
    only: str | None = None


class HandedOut(NamedTuple):
    """A message in progress, until when it is claimed, by our own clock, and the consumer if in a loop."""

    message: Message
    deadline: float
    consumer: OpenLoop | None = None


@dataclass(slots=True)
class ClaimStats:
    """Counts of messages handed out and refused here."""

    delivery: Histogram = field(default_factory=lambda: Histogram(LONG_S))
    """Seconds from sending to handing out."""
    stale: int = 0
    """How many operations on messages no longer held were refused."""

    def refuse(self, message: Message) -> NotHolder:
        """Count a refused operation, and return its error."""
        self.stale += 1
        return not_holder(message)


class Claims:
    """Claim messages for the consumers of one process, and track what they hold."""

    def __init__(
        self,
        store: Store,
        writer: OpLogWriter,
        clock: MeshClock,
        verifier: SenderVerifier,
        agent_signatures: AgentSignatures,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._mesh = store.mesh_id
        self._writer = writer
        self._clock = clock
        self._verifier = verifier
        self._agent_signatures = agent_signatures
        self._monotonic = monotonic
        self._handed_out: dict[str, HandedOut] = {}
        self._incarnation: int | None = None  # the first of this process
        self.stats = ClaimStats()
        self.acks = AckQueue(monotonic)
        """The queued acks of loops."""

    # --- claiming --------------------------------------------------------------------------------

    async def find_claimable(self, names: Sequence[str], *, timeout: float | None = None) -> Prospect:
        """Return whether there is anything to claim, as far as our copy of the database shows."""
        now_ms = self._clock.now_ms
        values: tuple[str | int, ...] = (*self._mesh, json(names), now_ms, self._node_prefix)
        found = await self._store.read(sql("claimable_quick"), values, timeout=timeout)
        if not found:
            return Prospect(False)
        if len(found) == 1 and found[0]["free_ms"] <= now_ms:
            return Prospect(True, only=found[0]["message_uuid"])
        whose = self._claim_values(names, self.new_name())
        values = (*whose, now_ms)
        inboxes = whose[2]
        rows = await self._store.read(sql_for_inboxes("claimable", inboxes), values, timeout=timeout)
        if not rows:
            rows = await self._store.read(sql_for_inboxes("next_free", inboxes), values, timeout=timeout)
            return Prospect(False, rows.value)
        message_uuid, is_alone = rows[0]
        return Prospect(True, only=message_uuid if is_alone and len(rows) == 1 else None)

    async def nonempty_inboxes(self, limit: int, *, fresh: bool = False) -> list[str]:
        """Return the inboxes of the mesh that hold a message which has not ended, up to `limit`."""
        values = (*self._mesh, limit)
        rows = await self._store.read(sql("nonempty_inboxes"), values, fresh=fresh, timeout=_READ_TIMEOUT_S)
        return [row[0].decode(errors="replace") for row in rows]

    async def free_times(self, names: Sequence[str]) -> dict[str, int]:
        """Return when each inbox has something to claim, or an earlier time; empty inboxes are left out."""
        node, maker = self._claim_values((), self.new_name())[-2:]
        values = (*self._mesh, json(names), self._clock.now_ms, node, maker)
        return {
            row[0]: row[1]
            for row in await self._store.read(sql("free_times"), values, timeout=_READ_TIMEOUT_S)
        }

    async def ended_or_claimed(self, message_uuids: Sequence[str]) -> list[str]:
        """Return those of the messages that have ended or are claimed, as far as our copy shows."""
        values = (*self._mesh, json(message_uuids), self._clock.now_ms)
        return [
            row[0] for row in await self._store.read(sql("undeliverable"), values, timeout=_RELEASE_TIMEOUT_S)
        ]

    def new_name(self) -> str:
        """Return a new name of a claim: the prefix of this process, and a unique id."""
        return self._process_prefix() + new_key()

    @property
    def _node_prefix(self) -> str:
        """Return the prefix of the names of all claims of this node, in each of its incarnations."""
        identity = self._writer.identity
        return f"{identity.chain}:" if identity.is_command else f"{identity.node_id}#"

    def _process_prefix(self) -> str:
        """Return the prefix of the names of all claims of this process.

        It stays the same when the node rejoins after a rollback. Otherwise its consumers would take each
        other's claims, and their own, for those of an earlier process.
        """
        identity = self._writer.identity
        if identity.is_command:
            return f"{identity.chain}:"
        if self._incarnation is None:
            self._incarnation = self._writer.incarnation
        if self._incarnation is None:
            raise Unreachable("messages can't be claimed: this node is not registered in the database yet")
        return f"{identity.node_id}#{self._incarnation}:"

    def _claim_values(self, names: Sequence[str], claim_name: str) -> tuple[str, str, str, str, str, str]:
        maker = claim_name.rpartition(":")[0] + ":"
        node = maker.rpartition("#")[0] + "#" if "#" in maker else maker
        return (*self._mesh, json(names), claim_name, node, maker)

    async def claim(
        self,
        names: Sequence[str],
        claim_name: str,
        *,
        lease_s: float,
        limit: int = MAX_CLAIMED,
        bury: bool = True,
        timeout: float | None = None,
    ) -> list[Message]:
        """Claim the next messages under this name. Return them in the order in which to hand them out.

        Forged and unreadable messages become dead letters instead.
        """
        script = claim_script(
            self._claim_values(names, claim_name),
            lease_ms=round(lease_s * 1_000),
            limit=min(limit, MAX_CLAIMED),
            of_pair=MAX_PER_PAIR,
            max_size=_MAX_BATCH_BYTES,
            bury=bury,
        )
        return await self._verify_rows(await self._claim(script, timeout))

    async def claim_one(
        self, message_uuid: str, claim_name: str, *, lease_s: float, timeout: float | None = None
    ) -> list[Message]:
        """Claim a message that is the only one of its pair; return nothing if that is not so."""
        script = claim_one_script(message_uuid, claim_name, round(lease_s * 1_000))
        return await self._verify_rows(await self._claim(script, timeout))

    async def _claim(self, script: Script, timeout: float | None) -> Rows:
        """Write a claim, after the queued acks: what waits behind an acknowledged message can be claimed."""
        (verdict,) = await self._write_after_acks((script,), timeout)
        if isinstance(verdict, MeshError):
            raise verdict
        return verdict.rows

    async def _verify_rows(self, rows: Rows) -> list[Message]:
        if not rows:
            return []
        messages = _count_attempts(in_turn([Message.read(row[0]) for row in rows]))
        genuine = await self._verifier.verify(messages)
        faults = [
            each.fault if is_genuine else "forged" for each, is_genuine in zip(messages, genuine, strict=True)
        ]
        if any(faults):
            await self.bury(zip(messages, faults, strict=True))
            messages = [each for each, fault in zip(messages, faults, strict=True) if fault is None]
        if messages:
            self._clock.receive(max(message.hlc for message in messages))
        return await self._agent_signatures.check(messages)

    async def bury(self, messages: Iterable[tuple[Message, str | None]]) -> None:
        """Turn the messages that have a fault into dead letters."""
        faulty = [(message, fault) for message, fault in messages if fault is not None]
        for message, fault in faulty:
            _log.error("message is a dead letter: message=%s reason=%s", message.message_uuid, fault)
        await self._store.write_all([bury_script(self._mesh, *each) for each in faulty])

    # --- handed out ------------------------------------------------------------------------------

    def hand_out(self, message: Message, deadline: float, consumer: OpenLoop | None = None) -> None:
        """Record that a consumer hands out this message, which is claimed until the deadline."""
        tracing.record_received(message)
        self._handed_out[message.message_uuid] = HandedOut(message, deadline, consumer)
        if (sent_ms := message.sent_ms) is not None:
            self.stats.delivery.observe((self._clock.now_ms - sent_ms) / 1_000)
        if len(self._handed_out) % 4_096 == 0:
            now = self._monotonic()
            self._handed_out = {key: each for key, each in self._handed_out.items() if each.deadline > now}

    def loop_of(self, message: Message, least_left_s: float) -> OpenLoop | None:
        """Return the open loop that has handed out a message, if so much is left of its lease."""
        handed = self._handed_out.get(message.message_uuid)
        if handed is None or handed.consumer is None or not handed.consumer.is_open:
            return None
        return handed.consumer if handed.deadline - self._monotonic() >= least_left_s else None

    def hand_over(self, message: Message) -> None:
        """Stop tracking a message."""
        self._handed_out.pop(message.message_uuid, None)

    async def ack(self, messages: Sequence[Message]) -> AckVerdicts:
        """Acknowledge messages, after the queued acks."""
        verdicts = await self._write_after_acks([self._build_ack(message) for message in messages], None)
        return self._judge(messages, verdicts)

    async def write_acks(self) -> None:
        """Write the queued acks. If this is cancelled, unsettled ones stay queued."""
        acks = self.acks.take()
        try:
            late = [each for each in acks if self.left_s(each.message) <= 0]  # these can't be spooled
            await self._write_queued([each for each in acks if each not in late] if late else acks)
            await self._write_queued(late)
        finally:
            self.acks.put_back(acks)

    async def _write_queued(self, acks: Sequence[QueuedAck]) -> None:
        try:
            verdicts = await self._store.write_all([self._build_ack(each.message) for each in acks])
        except Exception as error:  # also an unexpected one: what is put back is written again at once
            fault = error if isinstance(error, MeshError) else MeshError(f"ack failed unexpectedly: {error}")
            self.acks.settle(acks, AckVerdicts({each.message.message_uuid: fault for each in acks}))
        else:
            self._settle(acks, verdicts)

    async def _write_after_acks(self, scripts: Sequence[Script], timeout: float | None) -> Sequence[Verdict]:
        """Write the queued acks, then these scripts, in one request. If it fails, the acks stay queued."""
        acks = self.acks.take()
        try:
            verdicts = await self._store.write_all(
                [*(self._build_ack(each.message) for each in acks), *scripts], timeout=timeout
            )
            if acks:
                self._settle(acks, verdicts[: len(acks)])
        finally:
            self.acks.put_back(acks)
        return verdicts[len(acks) :]

    def _settle(self, acks: Sequence[QueuedAck], verdicts: Sequence[Verdict]) -> None:
        self.acks.settle(acks, self._judge([each.message for each in acks], verdicts))

    def _judge(self, messages: Sequence[Message], verdicts: Sequence[Verdict]) -> AckVerdicts:
        failures: dict[str, MeshError] = {}
        spooled: set[str] = set()
        for message, verdict in zip(messages, verdicts, strict=True):
            if isinstance(verdict, MeshError):
                failures[message.message_uuid] = verdict
            elif verdict.rows or verdict.spooled:
                self._handed_out.pop(message.message_uuid, None)
                if verdict.spooled:
                    spooled.add(message.message_uuid)
            else:
                failures[message.message_uuid] = self.stats.refuse(message)
        return AckVerdicts(failures, frozenset(spooled))

    async def ack_again(self, messages: Sequence[Message]) -> None:
        """Acknowledge messages whose ack is in the spool; what fails is redelivered after its lease."""
        with suppress(MeshError):
            await self.ack(messages)

    def _build_ack(self, message: Message) -> Script:
        if is_relayed(message):
            return ack_on_arrival_script(message)
        # Once the lease is over, only the database can decide whether it is too late.
        return ack_script(message, spoolable=self.left_s(message) > 0)

    def left_s(self, message: Message) -> float:
        """Return how many seconds are left of a lease, as far as is known here."""
        handed = self._handed_out.get(message.message_uuid)
        if handed is not None and handed.message.claim_owner == message.claim_owner:
            return handed.deadline - self._monotonic()
        until_ms = message.claim_until_ms
        return float("inf") if until_ms is None else (until_ms - self._clock.now_ms) / 1_000

    async def nack(self, message: Message, retry_in: float | None, reason: str | None) -> None:
        """Reject a message: it is redelivered after that time, and until then its pair waits."""
        if retry_in is None:
            retry_in = min(_MAX_RETRY_DELAY_S, 2.0 ** (max(1, message.delivery_attempts) - 1))
        if not 0 <= retry_in <= MAX_LEASE_S:
            raise BadValue(f"retry_in must be between 0 and {MAX_LEASE_S:g} seconds, got {retry_in}")
        try:
            await self._store.write(nack_script(self._mesh, message, round(retry_in * 1_000), reason))
        except Refused as refused:
            if refused.reason != NotHolder.code:
                raise
            raise self.stats.refuse(message) from None
        self._handed_out.pop(message.message_uuid, None)

    async def renew(self, message: Message, lease_s: float) -> None:
        """Renew the lease of a message, and of all that were claimed together with it."""
        sent = self._monotonic()
        together = [
            each for each in self._handed_out.values() if each.message.claim_owner == message.claim_owner
        ]
        messages = {each.message.message_uuid: each.message for each in together}
        messages[message.message_uuid] = message
        script = renew_script(self._mesh, list(messages.values()), round(lease_s * 1_000))
        renewed = {row[0] for row in (await self._store.write(script)).rows}
        for each in together:
            if each.message.message_uuid in renewed:
                self._handed_out[each.message.message_uuid] = each._replace(deadline=sent + lease_s)
        if message.message_uuid not in renewed:
            raise self.stats.refuse(message)

    async def release(self, messages: Sequence[Message], counted: Container[str]) -> None:
        """Release messages that were not looked at; `counted`: those for which an attempt was counted.

        If the database can't be reached, their leases expire.
        """
        if not messages:
            return
        heads = [each for each in messages if each.message_uuid in counted]
        others = [each for each in messages if each.message_uuid not in counted]
        try:
            await self._store.write(release_script(self._mesh, heads, others), timeout=_RELEASE_TIMEOUT_S)
        except MeshError as error:
            _log.info("unread messages not released, their leases expire: %s", error.line)

    async def release_claim(self, names: Sequence[str], claim_name: str) -> None:
        """Release all messages of a claim whose answer was lost, even if it is yet to be applied."""
        try:
            await self._store.write(
                release_claim_script(self._mesh, names, claim_name), timeout=_RELEASE_TIMEOUT_S
            )
        except MeshError as error:
            _log.info("messages of an unanswered claim not released, their leases expire: %s", error.line)

    async def release_all(self, covering: Sequence[Message]) -> None:
        """Release all claims of messages handed out, and all claims that cover relayed ones."""
        now = self._monotonic()
        handed = [each for each in self._handed_out.values() if each.deadline > now]
        self._handed_out.clear()
        claimed = [each.message for each in handed if not is_relayed(each.message)]
        await self.release([*claimed, *covering], ())


def firsts_of_pairs(messages: Sequence[Message]) -> set[str]:
    """Return the messages of a claim for which the database has counted this attempt."""
    return {each.message_uuid for each in {each.pair: each for each in reversed(messages)}.values()}


def _count_attempts(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with this attempt counted for those where the database has not."""
    firsts = firsts_of_pairs(messages)
    return [
        each if each.message_uuid in firsts else each._replace(delivery_attempts=each.delivery_attempts + 1)
        for each in messages
    ]


def not_holder(message: Message) -> NotHolder:
    """Return the error about a message that is no longer held under this claim."""
    return NotHolder(
        f"message {message.message_uuid} is not held under this claim: its lease is over, or it was released",
        hint="receive it again: it is redelivered",
    )


RELAYED_PREFIX: Final = "arrival:"
"""The prefix of the claim names of relayed messages; the name of a claim follows."""


def is_relayed(message: Message) -> bool:
    """Return whether it was handed out by the relay, while the database was unreachable."""
    return message.claim_owner is not None and message.claim_owner.startswith(RELAYED_PREFIX)


def checked_lease(seconds: Duration) -> float:
    """Return the lease in seconds, if it is within bounds."""
    return checked_seconds("lease", seconds, MIN_LEASE_S, MAX_LEASE_S, hint="pass no lease for the default")


def checked_count(name: str, count: int) -> int:
    """Return the number of messages to claim together, if it is valid."""
    if count < 1:
        raise BadValue(f"{name} must be at least 1, got {count}")
    return count
