"""A consumer: waits for messages, claims some, and hands them out one by one, each pair's in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from vox_mesh.errors import AWAY, MeshError, StoreClosed
from vox_mesh.messages.claims import (
    MAX_CLAIMED,
    MAX_PER_PAIR,
    RELAYED_PREFIX,
    Claims,
    firsts_of_pairs,
    is_relayed,
)
from vox_mesh.messages.inboxes import InboxLeases
from vox_mesh.messages.relay_buffer import RelayBuffer
from vox_mesh.messages.wakeups import LookPace
from vox_mesh.model.messages.records import ROLE, Message
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.store.engines.thread import to_the_end
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

POLL_S: Final = 60.0
"""The longest that a message can lie in the database before it is looked for."""

_RETRY_DELAY_S: Final = 1.0
_CLAIM_TIMEOUT_S: Final = 3.0
"""How long to wait for the answer to a claim; doubled after each unanswered one, up to a bound."""

_MAX_DOUBLINGS: Final = 3
_PATIENT_EVERY: Final = 4
_UNREACHABLE_TIMEOUT_S: Final = 0.5
_CLOSE_TIMEOUT_S: Final = 1.0
_BUSY_INTERVAL_S: Final = 0.02
_CLEAN_INTERVAL_S: Final = 1.0
_FIRST_LIMIT: Final = 8  # for an agent alone: messages to a role are shared with other consumers
_QUICK_S: Final = 1.0
_STALE_FRACTION: Final = 0.25  # of a lease: messages not handed out by then are released, and claimed again
_MARGIN_S: Final = 0.002

_Pair = tuple[str, str]
_ClaimKey = tuple[str, str | None]
"""A message and its claim: the same message may be claimed by another consumer later."""


class Consumer:
    """Hand out the messages for some names; the next of a pair only when the previous one is settled."""

    def __init__(
        self,
        *,
        store: Store,
        claims: Claims,
        relay_buffer: RelayBuffer,
        leases: InboxLeases,
        clock: MeshClock,
        monotonic: Callable[[], float],
        names: Sequence[str],
        lease_s: float,
        at_once: int,
        rest_s: float,
        is_nudged: bool,
    ) -> None:
        self.names = tuple(names)
        self._store = store
        self._claims = claims
        self._relay_buffer = relay_buffer
        self._leases = leases
        self._clock = clock
        self._lease_s = lease_s
        self._monotonic = monotonic
        self._wake = asyncio.Event()
        self._is_nudged = is_nudged
        self._rest_s = rest_s
        self._only_known: str | None = None  # the only message known to be waiting
        self._prefetched: list[Message] = []
        self._counted: set[str] = set()  # of the prefetched ones, those with an attempt counted
        self._busy: dict[_Pair, tuple[_ClaimKey, float]] = {}  # messages in progress, and their deadlines
        self._prefetched_at = 0.0
        self._expires_ms = float("inf")  # the earliest expiry of the prefetched messages, or earlier
        self._at_once = at_once
        has_roles = any(name.startswith(ROLE) for name in names)
        self._first_limit = min(1 if has_roles else _FIRST_LIMIT, at_once)
        self._limit = self._first_limit
        self._is_more_likely = False  # the last claim got as many messages as it may
        self._claim_name: str | None = None  # of a claim that is not answered yet
        self._polled_at = self._looked_at = self._cleaned_at = float("-inf")
        self._pace = LookPace()
        self._next_ms: int | None = None
        self._unanswered = 0  # requests since the database last answered
        self._has_relayed = False  # among the prefetched messages
        self.handled: dict[asyncio.Task[Any], Message | None] = {}
        """The tasks that got messages, each with its last one until it asks for the next."""
        self._is_changed = False
        self._seen = -1  # the change count at the last look
        if not is_nudged:
            self.mark_checked()
        self._is_closed = False
        self.is_open = True

    # --- notifications ---------------------------------------------------------------------------

    def nudge(self, message_uuid: str | None = None) -> None:
        """Note that there is a message, and wake up."""
        self._only_known = None if self._is_nudged else message_uuid
        self._is_nudged = True
        self._wake.set()

    def wake(self) -> None:
        """Note that something was committed, and wake up."""
        self._is_changed = True
        self._wake.set()

    def mark_checked(self) -> None:
        """Note that the database itself was asked on this receiver's behalf."""
        self._polled_at = self._monotonic()

    def mark_settled(self, message: Message) -> bool:
        """Note that a message is settled: the next one of its pair may be handed out.

        Return whether it was in progress here.
        """
        pair = message.pair
        busy = self._busy.get(pair)
        if busy is None or busy[0] != _claim_key(message):
            return False
        del self._busy[pair]
        self._wake.set()
        return True

    def mark_rejected(self, message: Message) -> list[Message]:
        """Note that a message will be redelivered. Return the prefetched ones that wait for it."""
        behind = [each for each in self._prefetched if _is_same_claim(each, message)]
        if behind:
            self._prefetched = [each for each in self._prefetched if not _is_same_claim(each, message)]
        self.mark_settled(message)
        return behind

    async def release_lost(self, message: Message) -> None:
        """Release the messages claimed together with one that is no longer ours."""
        await self._release(self.mark_rejected(message))

    @property
    def has_prefetched(self) -> bool:
        """Return whether messages are in hand that were not handed out yet."""
        return bool(self._prefetched)

    def has_pair(self, pair: _Pair) -> bool:
        """Return whether messages of this sender and receiver are in progress or prefetched here."""
        sender, receiver = pair
        parallel = [key for key in self._busy if key[1] == receiver and key[0].startswith(f"{sender}\n")]
        return any(map(self._is_busy, (pair, *parallel))) or any(
            each.addresses == pair for each in self._prefetched
        )

    # --- handing out -----------------------------------------------------------------------------

    def next_prefetched(self) -> Message | None:
        """Return the next message if it can be handed out at once."""
        if self._is_closed or not self._prefetched or self._has_stale:
            return None
        self._claims.acks.raise_failure(self)
        return self._pop_prefetched()

    async def next(self) -> Message:
        """Return the next message as soon as there is one."""
        if self._store.change_count != self._seen:  # it is woken only while it waits
            self._is_changed = True
        while True:
            await self._release_stale()
            if self._is_closed:
                break
            self._claims.acks.raise_failure(self)
            message = self._pop_prefetched()
            if message is not None:
                return message
            self._wake.clear()
            if not (self._is_time_to_look and await self._prefetch()):
                await self._wait_for_message()
        await self._release_prefetched()
        await self._claims.acks.wait_until_settled()  # the mesh gives them up after some time
        self._claims.acks.raise_failure(self)
        raise StoreClosed("receiver closed: the mesh is closing")

    @property
    def _is_time_to_look(self) -> bool:
        """Return whether to look for more; while prefetched messages wait, not all the time."""
        is_notified = self._is_changed or self._is_nudged
        return not self._prefetched or (
            is_notified and self._monotonic() - self._looked_at > _BUSY_INTERVAL_S
        )

    def _pop_prefetched(self) -> Message | None:
        for index, message in enumerate(self._prefetched):
            if not self._is_busy(message.pair):
                del self._prefetched[index]
                if self._has_hold_ended(message):
                    return self._pop_prefetched()
                if not self._prefetched and self._monotonic() - self._prefetched_at < _QUICK_S:
                    self._limit = min(2 * self._limit, self._at_once)
                return self._hand_out(message)
        return None

    def _has_hold_ended(self, message: Message) -> bool:
        return is_relayed(message) and self._relay_buffer.holds.find(message) is None

    def _is_busy(self, pair: _Pair) -> bool:
        """Return whether a message of this pair is in progress, and its deadline has not passed."""
        if pair not in self._busy:
            return False
        (message_uuid, _), deadline = self._busy[pair]
        if self._monotonic() >= deadline and not self._relay_buffer.holds.is_held(message_uuid):
            del self._busy[pair]  # and the hold of a relayed message was not extended
        return pair in self._busy

    def _hand_out(self, message: Message) -> Message:
        hold = self._relay_buffer.holds.find(message) if is_relayed(message) else None
        deadline = self._prefetched_at + self._lease_s if hold is None else hold.deadline
        self._busy[message.pair] = _claim_key(message), deadline
        self._relay_buffer.mark_handed_out(message)
        self._counted.discard(message.message_uuid)
        self._claims.hand_out(message, deadline, self)
        return message

    async def _release_prefetched(self) -> None:
        stock, self._prefetched = self._prefetched, []
        if self._claim_name is None:  # otherwise the same number is requested again
            self._limit = self._first_limit  # a slow consumer should leave messages to others
        await self._release(stock)

    @property
    def _is_stale(self) -> bool:
        return self._monotonic() - self._prefetched_at > _STALE_FRACTION * self._lease_s

    @property
    def _has_stale(self) -> bool:
        """Return whether prefetched messages are to be released."""
        return self._is_stale or self._clock.now_ms >= self._expires_ms

    async def _release_stale(self) -> None:
        """Release messages that were prefetched too long ago, or have expired meanwhile."""
        if self._prefetched and self._is_stale:
            await self._release_prefetched()
        now_ms = self._clock.now_ms
        if now_ms < self._expires_ms:
            return
        late = [each for each in self._prefetched if _expiry(each) <= now_ms]
        self._prefetched = [each for each in self._prefetched if _expiry(each) > now_ms]
        self._expires_ms = min(map(_expiry, self._prefetched), default=float("inf"))
        for message in late:
            self._relay_buffer.mark_handed_out(message)  # otherwise it would be taken from the buffer again
        await self._release(late)

    async def _release(self, messages: Sequence[Message]) -> None:
        """Release messages that were not looked at, even if we are cancelled meanwhile."""
        ids = {each.message_uuid for each in messages}
        counted = ids & self._counted
        self._counted -= ids
        claimed = [each for each in messages if not is_relayed(each)]
        for message in messages:
            hold = self._relay_buffer.holds.end(message) if is_relayed(message) else None
            if hold is not None and hold.claimed is not None:
                claimed.append(hold.claimed)
                counted.add(message.message_uuid)
        if claimed:
            await to_the_end(asyncio.ensure_future(self._claims.release(claimed, counted)))

    # --- prefetching -----------------------------------------------------------------------------

    async def _prefetch(self) -> bool:
        """Claim more messages, if there are any. Return whether to try handing out again."""
        self._looked_at = self._monotonic()
        self._pace.note(self._looked_at)
        self._is_changed = False
        self._seen = self._store.change_count
        if len(self._prefetched) >= MAX_CLAIMED or not self._clock.can_author:
            return False
        try:
            if self._unanswered and self._take_relayed():
                return True
            if not await self._is_worth_asking():
                await self._drop_settled()
                return False
            is_surer = self._is_nudged
            messages = await self._claim()
        except AWAY as error:
            if not self._unanswered:
                _log.warning("inbox unreachable: names=%s error=%s", ", ".join(self.names), error.line)
            self._unanswered += 1
            return self._take_relayed()
        self._unanswered = 0
        self._relay_buffer.drop_claimed(messages)
        return bool(messages) or is_surer  # after a needless nudge, look once more

    async def _drop_settled(self) -> None:
        """Drop relayed messages settled elsewhere, so that the next outage does not redeliver them."""
        kept = self._relay_buffer.kept_ids(self.names)
        if kept and self._looked_at - self._cleaned_at > _CLEAN_INTERVAL_S:
            self._cleaned_at = self._looked_at
            self._relay_buffer.drop(await self._claims.ended_or_claimed(kept))

    @property
    def _timeout_s(self) -> float:
        """Return how long to wait for the database.

        While it is unreachable that is short, or relayed messages would have to wait too; but now and then it
        is as long as usual, in case the database is only slow.
        """
        if not self._store.is_unreachable:
            return _CLAIM_TIMEOUT_S * float(1 << min(self._unanswered, _MAX_DOUBLINGS))
        return _UNREACHABLE_TIMEOUT_S if (self._unanswered + 1) % _PATIENT_EVERY else _CLAIM_TIMEOUT_S

    async def _is_worth_asking(self) -> bool:
        """Return whether to ask the database: after a nudge, a long time, or if our copy shows a message.

        Our copy does not show what can be claimed once the queued acks are written.
        """
        if self._is_nudged or self._is_more_likely or self._monotonic() - self._polled_at >= POLL_S:
            return True
        prospect = await self._claims.find_claimable(self.names, timeout=self._timeout_s)
        self._next_ms, self._only_known = prospect.next_ms, prospect.only
        return prospect.is_free

    async def _claim(self) -> list[Message]:
        was_nudged, self._is_nudged = self._is_nudged, False
        self._is_more_likely = False
        if self._claim_name is None:
            self._claim_name = self._claims.new_name()
        sent = self._monotonic()
        try:
            messages = await self._claim_only(self._claim_name)
            if not messages:
                messages = await self._claims.claim(
                    self.names,
                    self._claim_name,
                    lease_s=self._lease_s,
                    limit=self._limit,
                    bury=not was_nudged,
                    timeout=self._timeout_s,
                )
        except BaseException:
            self._is_nudged = True  # ask again, under the same name
            raise
        self._claim_name = None
        self._polled_at = self._monotonic()
        self._is_more_likely = len(messages) >= min(self._limit, MAX_PER_PAIR)
        self._counted |= firsts_of_pairs(messages)
        self._add_prefetched(messages, sent)
        return await self._reconcile_relayed(messages, sent)

    async def _reconcile_relayed(self, messages: list[Message], sent: float) -> list[Message]:
        """Remove messages that this node already has, or has settled, through the relay. Return the others.

        Relayed messages that were not handed out are released: the database decides again which consumer gets
        them.
        """
        relayed = [each for each in self._prefetched if is_relayed(each)] if self._has_relayed else []
        held = self._relay_buffer.holds.cover(messages, sent + self._lease_s, but=relayed)
        done = [each for each in messages if self._relay_buffer.is_done(each)]
        if not relayed and not held and not done:
            return messages
        pairs = {each.pair for each in held}
        behind = [each for each in messages if each.pair in pairs and each not in held and each not in done]
        kept_back = {_claim_key(each) for each in (*relayed, *held, *done, *behind)}
        self._prefetched = [each for each in self._prefetched if _claim_key(each) not in kept_back]
        self._has_relayed = False
        self._counted -= {each.message_uuid for each in (*held, *done)}
        settling = asyncio.ensure_future(self._settle(done, (*relayed, *behind)))
        await to_the_end(settling)
        return [each for each in messages if _claim_key(each) not in kept_back]

    async def _settle(self, done: Sequence[Message], others: Sequence[Message]) -> None:
        await self._release(others)
        if done:
            await self._claims.ack_again(done)

    async def _claim_only(self, claim_name: str) -> list[Message]:
        """Claim the only known message by the short path."""
        only, self._only_known = self._only_known, None
        if only is None:
            return []
        return await self._claims.claim_one(only, claim_name, lease_s=self._lease_s, timeout=self._timeout_s)

    def _add_prefetched(self, messages: Sequence[Message], sent: float) -> None:
        if not self._prefetched:
            self._prefetched_at = sent
        self._prefetched += messages
        self._expires_ms = min([self._expires_ms, *map(_expiry, messages)])

    def _take_relayed(self) -> bool:
        """Take relayed messages, if the database is unreachable and the inbox is leased to this node."""
        if not self._store.is_unreachable:
            return False
        until = {name: until for name in self.names if (until := self._leases.until(name)) is not None}
        prefetched = {each.message_uuid for each in self._prefetched}
        now = self._monotonic()
        taken = [
            each._replace(claim_owner=RELAYED_PREFIX + self._claims.new_name(), delivery_attempts=1)
            for each in self._relay_buffer.deliverable(list(until), prefetched, self)[: self._limit]
        ]
        for message in taken:
            self._relay_buffer.holds.begin(message, now + self._lease_s, until[message.receiver_agent])
        if taken:
            self._has_relayed = True
            self._add_prefetched(taken, now)
        return any(not self._is_busy(each.pair) for each in taken)

    async def _wait_for_message(self) -> None:
        """Wait until there may be a message."""
        pause = _RETRY_DELAY_S if self._unanswered else self._rest_s
        if self._prefetched:
            is_notified = self._is_changed or self._is_nudged
            pause = _BUSY_INTERVAL_S if is_notified else min(pause, _STALE_FRACTION * self._lease_s)
        else:
            await asyncio.sleep(self._pace.rest_s(self._monotonic()))
        if self._next_ms is not None and not self._unanswered:
            pause = min(pause, max(0.0, (self._next_ms - self._clock.now_ms) / 1_000) + _MARGIN_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()

    async def give_up(self, message: Message | None) -> None:
        """Release the message of a handler, if it is not settled, and all that were not looked at."""
        if message is not None and self._busy.get(message.pair, (None,))[0] == _claim_key(message):
            self._relay_buffer.mark_not_done(message)
            self._claims.hand_over(message)
            self.mark_settled(message)
            self._prefetched.insert(0, message)  # released together with the later ones
        await self._release_prefetched()

    async def close(self) -> None:
        """Release all messages that were not looked at, also of an unanswered claim; hand out no more."""
        self._is_closed = True
        self._wake.set()
        if self._claim_name is not None:
            await self._release_unanswered(self._claim_name)
        await self._release_prefetched()

    async def _release_unanswered(self, claim_name: str) -> None:
        """Release the messages of a claim whose answer has not come."""
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._claim()
        except (MeshError, TimeoutError):
            await self._claims.release_claim(self.names, claim_name)


def _expiry(message: Message) -> float:
    return float("inf") if message.expires_ms is None else message.expires_ms


def _is_same_claim(one: Message, other: Message) -> bool:
    """Return whether two messages of one pair were claimed together, or were both relayed."""
    is_same = one.claim_owner == other.claim_owner or (is_relayed(one) and is_relayed(other))
    return one.pair == other.pair and is_same


def _claim_key(message: Message) -> _ClaimKey:
    return message.message_uuid, message.claim_owner
