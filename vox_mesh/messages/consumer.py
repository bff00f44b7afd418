"""A consumer: waits for messages, claims some, and hands them out one by one, each pair's in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from vox_mesh.coordination.clock import MeshClock
from vox_mesh.errors import AWAY, MeshError, StoreClosed
from vox_mesh.messages.arrivals import Arrivals
from vox_mesh.messages.claims import MAX_CLAIMED, ON_ARRIVAL, Claims, firsts_of_pairs, is_brought
from vox_mesh.model.messages import Message
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

POLL_S: Final = 60.0
"""The longest that a message can lie in the database before it is looked for."""

_AGAIN_S: Final = 1.0
_CLAIM_S: Final = 3.0
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
        arrivals: Arrivals,
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
        self._is_away = False
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

    def given_back(self, message: Message) -> None:
        """What its sender wrote later waits for it, and is no longer ours."""
        owner = message.claim_owner
        self._in_stock = [
            each for each in self._in_stock if each.pair != message.pair or each.claim_owner != owner
        ]
        self.settled(message)

    # --- handing out -----------------------------------------------------------------------------

    async def next(self) -> Message:
        """The next message, whenever it comes."""
        if self._store.change_count != self._seen:  # it is woken only while it waits here
            self._is_changed = True
        while True:
            await self._give_back_what_is_late()
            if self._is_closed:
                break
            message = self._from_stock()
            if message is not None:
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
                if not self._in_stock and self._monotonic() - self._stocked_at < _QUICK_S:
                    self._limit = min(2 * self._limit, self._at_once)
                return self._handed_out(message)
        return None

    def _is_busy(self, pair: _Pair) -> bool:
        """Whether somebody works on a message of this pair, and still may."""
        if pair in self._busy and self._monotonic() >= self._busy[pair][1]:
            del self._busy[pair]
        return pair in self._busy

    def _handed_out(self, message: Message) -> Message:
        deadline = self._stocked_at + self._lease_s
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
        ids = {each.message_uuid for each in messages}
        counted = ids & self._counted
        self._counted -= ids
        await self._claims.release([each for each in messages if not is_brought(each)], counted)

    # --- finding more ----------------------------------------------------------------------------

    async def _restock(self) -> bool:
        """Get more, if there is any; whether there was."""
        self._looked_at = self._monotonic()
        self._is_changed = False
        self._seen = self._store.change_count
        if len(self._in_stock) >= MAX_CLAIMED:
            return False
        try:
            if self._is_away and self._take_brought():
                return True
            if not await self._is_worth_asking():
                await self._forget_past()
                return False
            is_surer = self._is_nudged
            messages = await self._claim()
        except AWAY as error:
            if not self._is_away:
                _log.warning("the inbox of %s can't be asked: %s", ", ".join(self.names), error.line)
            self._is_away = True
            return self._take_brought()
        self._is_away = False
        self._arrivals.found(messages)
        return bool(messages) or is_surer  # after a nudge for nothing, it is looked once more

    async def _forget_past(self) -> None:
        """What was brought here, and dealt with elsewhere, is not to be handed out in the next outage."""
        kept = self._arrivals.kept(self.names)
        if kept and self._looked_at - self._tidied_at > _TIDY_S:
            self._tidied_at = self._looked_at
            self._arrivals.drop(await self._claims.past(kept))

    @property
    def _patience_s(self) -> float:
        """How long to wait for the database: if it may be away, something is brought meanwhile."""
        return _AWAY_S if self._is_away or not self._store.is_in_touch else _CLAIM_S

    async def _is_worth_asking(self) -> bool:
        """Whether to ask the database: after a nudge, after a long time, or if our copy shows something."""
        if self._is_nudged or self._monotonic() - self._polled_at >= POLL_S:
            return True
        prospect = await self._claims.look(self.names, timeout=self._patience_s)
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
                    timeout=self._patience_s,
                )
        except BaseException:
            self._is_nudged = True  # it is to be asked again, under the same name
            raise
        self._claim_name = None
        self._polled_at = self._monotonic()
        counted = firsts_of_pairs(messages)
        done = [each for each in messages if self._arrivals.is_done(each)]
        if done:
            with suppress(MeshError):  # then they come once more
                await self._claims.ack(done)
            messages = [each for each in messages if each not in done]
        self._put_in_stock(messages, sent)
        self._counted |= counted - {each.message_uuid for each in done}
        return messages

    async def _claim_only(self, name: str) -> list[Message]:
        """The one message that we know of, in the short way."""
        only, self._only = self._only, None
        if only is None:
            return []
        return await self._claims.claim_one(only, name, lease_s=self._lease_s, timeout=self._patience_s)

    def _put_in_stock(self, messages: Sequence[Message], sent: float) -> None:
        if not self._in_stock:
            self._stocked_at = sent
        self._in_stock += messages
        self._expires_ms = min([self._expires_ms, *map(_expiry, messages)])

    def _take_brought(self) -> bool:
        """The database is away: arrival at this node is the claim."""
        in_stock = {each.message_uuid for each in self._in_stock}
        brought = [
            each._replace(claim_owner=ON_ARRIVAL + each.message_uuid, delivery_attempts=1)
            for each in self._arrivals.waiting(self.names, in_stock)
        ]
        if brought:
            self._put_in_stock(brought, self._monotonic())
        return any(not self._is_busy(each.pair) for each in brought)

    async def _rest(self) -> None:
        """Wait until there may be something."""
        pause = _AGAIN_S if self._is_away else self._rest_s
        if self._in_stock:
            is_told = self._is_changed or self._is_nudged
            pause = _BUSY_S if is_told else min(pause, _STALE * self._lease_s)
        else:
            await asyncio.sleep(_CALM_S - (self._monotonic() - self._looked_at))
        if self._next_ms is not None and not self._is_away:
            pause = min(pause, max(0.0, (self._next_ms - self._clock.now_ms) / 1_000) + _MARGIN_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()

    async def close(self) -> None:
        """Give back what nobody has looked at, also if it is not known yet; hand out nothing more."""
        self._is_closed = True
        self._wake.set()
        if self._claim_name is not None:
            with suppress(MeshError, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._claim()
        await self._give_back_stock()


def _expiry(message: Message) -> float:
    return float("inf") if message.expires_ms is None else message.expires_ms


def _held(message: Message) -> _Held:
    return message.message_uuid, message.claim_owner
