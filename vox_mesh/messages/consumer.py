"""A consumer: waits for messages, claims some, and hands them out one by one, each pair's in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from vox_mesh.errors import AWAY, MeshError, StoreClosed
from vox_mesh.messages.claims import MAX_CLAIMED, ON_ARRIVAL, Claims, firsts_of_pairs, is_brought
from vox_mesh.messages.inbox_leases import InboxLeases
from vox_mesh.messages.relay_buffer import RelayBuffer
from vox_mesh.model.messages.records import Message
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.store.engines.thread import to_the_end
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

POLL_S: Final = 60.0
"""The longest that a message can lie in the database before it is looked for."""

_AGAIN_S: Final = 1.0
_CLAIM_S: Final = 3.0
"""How long to wait for the answer to a claim; twice as long each time that none came, up to a bound."""

_DOUBLINGS: Final = 3
_PATIENT_EVERY: Final = 4
_AWAY_S: Final = 0.5
_CLOSE_S: Final = 1.0
_CALM_S: Final = 0.002  # a busy mesh commits all the time
_BUSY_S: Final = 0.02
_TIDY_S: Final = 1.0
_FEW: Final = 8
_QUICK_S: Final = 1.0
_STALE: Final = 0.25  # of a lease: what was not looked at by then is given back, and claimed anew
_MARGIN_S: Final = 0.002

_Pair = tuple[str, str]
_Held = tuple[str, str | None]
"""A message and its claim: the same message may be in other hands later."""


class Consumer:
    """Hands out the messages for some names; of each pair only when the one before is settled."""

    def __init__(
        self,
        store: Store,
        claims: Claims,
        arrivals: RelayBuffer,
        leases: InboxLeases,
        clock: MeshClock,
        names: Sequence[str],
        lease_s: float,
        monotonic: Callable[[], float],
        at_once: int = MAX_CLAIMED,
        *,
        rest_s: float = POLL_S,
        is_nudged: bool = True,
    ) -> None:
        self.names = tuple(names)
        self._store = store
        self._claims = claims
        self._arrivals = arrivals
        self._leases = leases
        self._clock = clock
        self._lease_s = lease_s
        self._monotonic = monotonic
        self._wake = asyncio.Event()
        self._is_nudged = is_nudged
        self._rest_s = rest_s
        self._only: str | None = None  # the one message that is known to wait
        self._in_stock: list[Message] = []
        self._counted: set[str] = set()  # of what is in stock, those for which this is an attempt
        self._busy: dict[_Pair, tuple[_Held, float]] = {}  # what is worked on, and until when
        self._stocked_at = 0.0
        self._expires_ms = float("inf")  # the first of what is in stock, or was
        self._at_once = at_once
        self._limit = min(_FEW, at_once)
        self._claim_name: str | None = None  # asked for, and not answered yet
        self._polled_at = self._looked_at = self._tidied_at = float("-inf")
        self._next_ms: int | None = None
        self._unanswered = 0  # how often the database was asked since it last answered
        self._has_relayed = False  # among what is in stock
        self._in_hand: Message | None = None  # what was handed out last, until the next is asked for
        self._is_changed = False
        self._seen = -1  # the count of changes when it last looked
        if not is_nudged:
            self.checked()
        self._is_closed = False

    # --- what it is told -------------------------------------------------------------------------

    def nudge(self, message_uuid: str | None = None) -> None:
        """There is a message."""
        self._only = None if self._is_nudged else message_uuid
        self._is_nudged = True
        self._wake.set()

    def look(self) -> None:
        """Something was committed."""
        self._is_changed = True
        self._wake.set()

    def checked(self) -> None:
        """Note that the database itself was asked on this receiver's behalf."""
        self._polled_at = self._monotonic()

    def settled(self, message: Message) -> None:
        """It is done with: the next one of its pair may come."""
        if message.pair in self._busy and self._busy[message.pair][0] == _held(message):
            del self._busy[message.pair]
            self._wake.set()

    def given_back(self, message: Message) -> list[Message]:
        """It is to be tried again. Return what we had of its pair, which waits for it."""
        behind = [each for each in self._in_stock if _is_together(each, message)]
        if behind:
            self._in_stock = [each for each in self._in_stock if not _is_together(each, message)]
        self.settled(message)
        return behind

    async def lost(self, message: Message) -> None:
        """It is not ours any more: release what was claimed with it, and would be handed out after it."""
        await self._give_back(self.given_back(message))

    def has_pair(self, pair: _Pair) -> bool:
        """Whether messages of this pair are in hand or in stock here."""
        return self._is_busy(pair) or any(each.pair == pair for each in self._in_stock)

    # --- handing out -----------------------------------------------------------------------------

    async def next(self) -> Message:
        """The next message, whenever it comes."""
        self._in_hand = None
        if self._store.change_count != self._seen:  # it is woken only while it waits here
            self._is_changed = True
        while True:
            await self._give_back_what_is_late()
            if self._is_closed:
                break
            message = self._from_stock()
            if message is not None:
                self._in_hand = message
                return message
            self._wake.clear()
            if not (self._is_time_to_look and await self._restock()):
                await self._rest()
        await self._give_back_stock()
        raise StoreClosed("nothing is received here any more")

    @property
    def _is_time_to_look(self) -> bool:
        """Whether to look for more: while others of the same pairs are worked on, not all the time."""
        is_told = self._is_changed or self._is_nudged
        return not self._in_stock or (is_told and self._monotonic() - self._looked_at > _BUSY_S)

    def _from_stock(self) -> Message | None:
        for index, message in enumerate(self._in_stock):
            if not self._is_busy(message.pair):
                del self._in_stock[index]
                if self._is_hold_over(message):
                    return self._from_stock()
                if not self._in_stock and self._monotonic() - self._stocked_at < _QUICK_S:
                    self._limit = min(2 * self._limit, self._at_once)
                return self._handed_out(message)
        return None

    def _is_hold_over(self, message: Message) -> bool:
        return is_brought(message) and self._arrivals.holds.of(message) is None

    def _is_busy(self, pair: _Pair) -> bool:
        """Whether somebody works on a message of this pair, and still may."""
        if pair not in self._busy:
            return False
        (message_uuid, _), deadline = self._busy[pair]
        if self._monotonic() >= deadline and not self._arrivals.holds.is_held(message_uuid):
            del self._busy[pair]  # nor was the hold of a relayed message extended
        return pair in self._busy

    def _handed_out(self, message: Message) -> Message:
        hold = self._arrivals.holds.of(message) if is_brought(message) else None
        deadline = self._stocked_at + self._lease_s if hold is None else hold.deadline
        self._busy[message.pair] = _held(message), deadline
        self._arrivals.handed_out(message)
        self._counted.discard(message.message_uuid)
        self._claims.hand_out(message, deadline)
        return message

    async def _give_back_stock(self) -> None:
        stock, self._in_stock = self._in_stock, []
        if self._claim_name is None:  # otherwise it asks for as many again
            self._limit = min(_FEW, self._at_once)  # whoever takes so long should not keep others waiting
        await self._give_back(stock)

    async def _give_back_what_is_late(self) -> None:
        """What has lain here for long, or has expired while others of its pair were worked on."""
        if self._in_stock and self._monotonic() - self._stocked_at > _STALE * self._lease_s:
            await self._give_back_stock()
        now_ms = self._clock.now_ms
        if now_ms < self._expires_ms:
            return
        late = [each for each in self._in_stock if _expiry(each) <= now_ms]
        self._in_stock = [each for each in self._in_stock if _expiry(each) > now_ms]
        self._expires_ms = min(map(_expiry, self._in_stock), default=float("inf"))
        for message in late:
            self._arrivals.handed_out(message)  # or it would be taken from there once more
        await self._give_back(late)

    async def _give_back(self, messages: Sequence[Message]) -> None:
        """Release messages that were not looked at, also if we are cancelled meanwhile."""
        ids = {each.message_uuid for each in messages}
        counted = ids & self._counted
        self._counted -= ids
        claimed = [each for each in messages if not is_brought(each)]
        for message in messages:
            hold = self._arrivals.holds.end(message) if is_brought(message) else None
            if hold is not None and hold.claimed is not None:
                claimed.append(hold.claimed)
                counted.add(message.message_uuid)
        if claimed:
            await to_the_end(asyncio.ensure_future(self._claims.release(claimed, counted)))

    # --- finding more ----------------------------------------------------------------------------

    async def _restock(self) -> bool:
        """Get more, if there is any; whether there was."""
        self._looked_at = self._monotonic()
        self._is_changed = False
        self._seen = self._store.change_count
        if len(self._in_stock) >= MAX_CLAIMED or not self._clock.can_author:
            return False
        try:
            if self._unanswered and self._take_relayed():
                return True
            if not await self._is_worth_asking():
                await self._forget_past()
                return False
            is_surer = self._is_nudged
            messages = await self._claim()
        except AWAY as error:
            if not self._unanswered:
                _log.warning("the inbox of %s can't be asked: %s", ", ".join(self.names), error.line)
            self._unanswered += 1
            return self._take_relayed()
        self._unanswered = 0
        self._arrivals.found(messages)
        return bool(messages) or is_surer  # after a nudge for nothing, it is looked once more

    async def _forget_past(self) -> None:
        """What was brought here, and dealt with elsewhere, is not to be handed out in the next outage."""
        kept = self._arrivals.kept(self.names)
        if kept and self._looked_at - self._tidied_at > _TIDY_S:
            self._tidied_at = self._looked_at
            self._arrivals.drop(await self._claims.past(kept))

    @property
    def _timeout_s(self) -> float:
        """How long to wait for the database.

        While it is unreachable that is short, or relayed messages would have to wait, too; but now and then
        it is as long as usual, in case it is no more than slow.
        """
        if not self._store.is_unreachable:
            return _CLAIM_S * float(1 << min(self._unanswered, _DOUBLINGS))
        return _AWAY_S if (self._unanswered + 1) % _PATIENT_EVERY else _CLAIM_S

    async def _is_worth_asking(self) -> bool:
        """Whether to ask the database: after a nudge, after a long time, or if our copy shows something."""
        if self._is_nudged or self._monotonic() - self._polled_at >= POLL_S:
            return True
        prospect = await self._claims.look(self.names, timeout=self._timeout_s)
        self._next_ms, self._only = prospect.next_ms, prospect.only
        return prospect.is_free

    async def _claim(self) -> list[Message]:
        was_nudged, self._is_nudged = self._is_nudged, False
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
            self._is_nudged = True  # it is to be asked again, under the same name
            raise
        self._claim_name = None
        self._polled_at = self._monotonic()
        self._counted |= firsts_of_pairs(messages)
        self._put_in_stock(messages, sent)
        return await self._sort_out(messages, sent)

    async def _sort_out(self, messages: list[Message], sent: float) -> list[Message]:
        """Keep back what this node has, or is done with, as the relay brought it; return the others.

        What the relay brought and was not looked at goes back: now the database says again who has it.
        """
        relayed = [each for each in self._in_stock if is_brought(each)] if self._has_relayed else []
        held = self._arrivals.holds.cover(messages, sent + self._lease_s, but=relayed)
        done = [each for each in messages if self._arrivals.is_done(each)]
        if not relayed and not held and not done:
            return messages
        pairs = {each.pair for each in held}
        behind = [each for each in messages if each.pair in pairs and each not in held and each not in done]
        kept_back = {_held(each) for each in (*relayed, *held, *done, *behind)}
        self._in_stock = [each for each in self._in_stock if _held(each) not in kept_back]
        self._has_relayed = False
        self._counted -= {each.message_uuid for each in (*held, *done)}
        settling = asyncio.ensure_future(self._settle(done, (*relayed, *behind)))
        await to_the_end(settling)
        return [each for each in messages if _held(each) not in kept_back]

    async def _settle(self, done: Sequence[Message], others: Sequence[Message]) -> None:
        await self._give_back(others)
        if done:
            await self._claims.ack_again(done)

    async def _claim_only(self, name: str) -> list[Message]:
        """The one message that we know of, in the short way."""
        only, self._only = self._only, None
        if only is None:
            return []
        return await self._claims.claim_one(only, name, lease_s=self._lease_s, timeout=self._timeout_s)

    def _put_in_stock(self, messages: Sequence[Message], sent: float) -> None:
        if not self._in_stock:
            self._stocked_at = sent
        self._in_stock += messages
        self._expires_ms = min([self._expires_ms, *map(_expiry, messages)])

    def _take_relayed(self) -> bool:
        """Take what the relay brought: the database is unreachable, and the inbox leased to this node."""
        if not self._store.is_unreachable:
            return False
        until = {name: until for name in self.names if (until := self._leases.until(name)) is not None}
        in_stock = {each.message_uuid for each in self._in_stock}
        now = self._monotonic()
        taken = [
            each._replace(claim_owner=ON_ARRIVAL + self._claims.new_name(), delivery_attempts=1)
            for each in self._arrivals.waiting(list(until), in_stock, self)[: self._limit]
        ]
        for message in taken:
            self._arrivals.holds.begin(message, now + self._lease_s, until[message.receiver_agent])
        if taken:
            self._has_relayed = True
            self._put_in_stock(taken, now)
        return any(not self._is_busy(each.pair) for each in taken)

    async def _rest(self) -> None:
        """Wait until there may be something."""
        pause = _AGAIN_S if self._unanswered else self._rest_s
        if self._in_stock:
            is_told = self._is_changed or self._is_nudged
            pause = _BUSY_S if is_told else min(pause, _STALE * self._lease_s)
        else:
            await asyncio.sleep(_CALM_S - (self._monotonic() - self._looked_at))
        if self._next_ms is not None and not self._unanswered:
            pause = min(pause, max(0.0, (self._next_ms - self._clock.now_ms) / 1_000) + _MARGIN_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()

    async def give_up(self) -> None:
        """Release the message in hand, if it is not settled, and all that nobody has looked at."""
        message, self._in_hand = self._in_hand, None
        if message is not None and self._busy.get(message.pair, (None,))[0] == _held(message):
            self._arrivals.not_done(message)
            self._claims.hand_over(message)
            self.settled(message)
            self._in_stock.insert(0, message)  # it goes back with those that come after it
        await self._give_back_stock()

    async def close(self) -> None:
        """Give back what nobody has looked at, also if it is not known yet; hand out nothing more."""
        self._is_closed = True
        self._wake.set()
        if self._claim_name is not None:
            await self._give_back_unanswered(self._claim_name)
        await self._give_back_stock()

    async def _give_back_unanswered(self, name: str) -> None:
        """Give back what a claim came to whose answer has not come."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._claim()
        except (MeshError, TimeoutError):
            await self._claims.release_claim(self.names, name)


def _expiry(message: Message) -> float:
    return float("inf") if message.expires_ms is None else message.expires_ms


def _is_together(one: Message, other: Message) -> bool:
    """Whether two messages of one pair were claimed together, or both taken as the relay brought them."""
    is_same = one.claim_owner == other.claim_owner or (is_brought(one) and is_brought(other))
    return one.pair == other.pair and is_same


def _held(message: Message) -> _Held:
    return message.message_uuid, message.claim_owner
