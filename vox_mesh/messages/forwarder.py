"""Messages to other scopes: claimed here as any message, stored in the scope of the recipient, acknowledged.

A message waits in the database of its sender until that of its recipient has it, or it becomes a dead letter.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from vox_mesh.errors import MeshError
from vox_mesh.messages.claims import Claims, firsts_of_pairs
from vox_mesh.messages.outbound import SQL
from vox_mesh.messages.scope_inbox import ArrivalVerdict, Fate, ScopeInbox
from vox_mesh.messages.scripts import CHANGED, json
from vox_mesh.model.messages.records import Message
from vox_mesh.model.messages.scope_address import ScopeAddress
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.observability.throttled_logger import ThrottledLogger
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

MAX_AGE_MS: Final = 14 * 86_400_000
"""How long a message may wait. Arrivals are remembered for longer, so that none is stored twice."""

ARRIVALS_MS: Final = 30 * 86_400_000
"""How long arrivals are remembered."""

_LEASE_S: Final = 60.0
_INBOXES: Final = 256
_BATCH: Final = 64
_FULL_RETRY_S: Final = 30.0
_DEBOUNCE_S: Final = 0.02
_INTERVAL_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 30.0
_FORGET_EACH_S: Final = 3_600.0
_FORGET_BATCH: Final = 500
_FORGET_BATCHES: Final = 20


class Forwarder:
    """Forward the messages of one scope to the other scopes that this process serves."""

    def __init__(
        self,
        store: Store,
        claims: Claims,
        clock: MeshClock,
        owner_key: Callable[[], Awaitable[str | None]],
        known: Sequence[str],
        inboxes: Mapping[str, ScopeInbox],
        monotonic: Callable[[], float],
    ) -> None:
        """`known`: all scopes of the directory; `inboxes`: of the other scopes that are served here."""
        self._store = store
        self._mesh = store.mesh_id
        self._origin = store.mesh_id[0]
        self._claims = claims
        self._clock = clock
        self._owner_key = owner_key
        self._known = known
        self._inboxes = inboxes
        self._monotonic = monotonic
        self._log_throttled = ThrottledLogger(_log, monotonic)
        self._pauses: dict[str, tuple[float, float]] = {}
        """Of scopes that did not take messages: until when they are left alone, and for how long that is."""
        self._forget_at = 0.0

    async def run(self) -> None:
        """Forward after each commit, until cancelled."""
        async for _ in self._store.changes(interval_s=_INTERVAL_S, debounce_s=_DEBOUNCE_S):
            try:
                await self.run_once()
            except MeshError as error:
                self._log_throttled(logging.WARNING, "messages not forwarded: error=%s", error.line)

    async def run_once(self) -> int:
        """Forward all that waits now; return how many messages other scopes have stored."""
        if not self._clock.can_author:
            return 0
        forwarded = 0
        for scope, inbox in self._inboxes.items():
            if self._pauses.get(scope, (0.0, 0.0))[0] > self._monotonic():
                continue
            forwarded += await self._forward_to(scope, inbox)
        await self._bury_unknown()
        await self._forget_arrivals()
        return forwarded

    async def _forward_to(self, scope: str, inbox: ScopeInbox) -> int:
        """Forward batches to one scope until nothing waits, or it does not take them."""
        forwarded = 0
        while names := await self._waiting("outbound", scope):
            batch = await self._claim(names)
            if not batch:
                break
            try:
                verdicts = await inbox.take(self._origin, await self._owner_key(), batch, self._clock.now_ms)
            except MeshError as error:
                verdicts = [ArrivalVerdict(Fate.POSTPONED, error.line)] * len(batch)
            except BaseException:
                await self._claims.release(batch, firsts_of_pairs(batch))
                raise
            stored = await self._settle(batch, verdicts)
            forwarded += stored
            if any(each.fate is Fate.POSTPONED for each in verdicts):
                self._pause(scope, next(each.reason for each in verdicts if each.fate is Fate.POSTPONED))
                break
            self._pauses.pop(scope, None)
        return forwarded

    async def _waiting(self, statement: str, scopes: str) -> list[str]:
        rows = await self._store.read(SQL[statement], (*self._mesh, scopes, _INBOXES))
        return [row[0].decode(errors="replace") for row in rows]

    async def _claim(self, names: Sequence[str]) -> list[Message]:
        """Claim the next messages, and turn into dead letters what no scope will ever store."""
        claimed = await self._claims.claim(names, self._claims.new_name(), lease_s=_LEASE_S, limit=_BATCH)
        faulty = [(message, fault) for message in claimed if (fault := self._fault(message)) is not None]
        if not faulty:
            return claimed
        await self._claims.bury(faulty)
        buried = {message.message_uuid for message, _ in faulty}
        return [message for message in claimed if message.message_uuid not in buried]

    def _fault(self, message: Message) -> str | None:
        address = ScopeAddress.parse(message.receiver_agent)
        if address is None or address.scope not in self._known:
            return f"no scope {'' if address is None else address.scope} in the directory of this node"
        if address.scope == self._origin:
            return f"sent to its own scope: send it to {address.inbox}"
        further = ScopeAddress.parse(address.inbox)
        if further is not None and further.scope in self._known:
            return f"scope {address.scope} does not pass messages on: send it to {address.inbox}"
        if message.sent_ms is None or message.sent_ms < self._clock.now_ms - MAX_AGE_MS:
            return "not forwarded within 14 days"
        return None

    async def _settle(self, batch: Sequence[Message], verdicts: Sequence[ArrivalVerdict]) -> int:
        """Settle claimed messages by their verdicts; return how many were stored."""
        by_fate: dict[Fate, list[tuple[Message, str]]] = {fate: [] for fate in Fate}
        for message, verdict in zip(batch, verdicts, strict=True):
            by_fate[verdict.fate].append((message, verdict.reason))
        if stored := [message for message, _ in by_fate[Fate.STORED]]:
            await self._claims.ack(stored)  # what fails is offered again, and has arrived before
        if by_fate[Fate.REFUSED]:
            await self._claims.bury(by_fate[Fate.REFUSED])
        for message, reason in by_fate[Fate.FULL]:
            await self._claims.nack(message, _FULL_RETRY_S, reason)
        if postponed := [message for message, _ in by_fate[Fate.POSTPONED]]:
            await self._claims.release(postponed, firsts_of_pairs(batch))
        return len(stored)

    def _pause(self, scope: str, reason: str) -> None:
        """Leave a scope alone for a while, longer each time; its messages wait, and no attempt is counted."""
        _, last_s = self._pauses.get(scope, (0.0, 0.0))
        pause_s = min(_MAX_PAUSE_S, max(_FIRST_PAUSE_S, 2 * last_s))
        self._pauses[scope] = self._monotonic() + pause_s, pause_s
        self._log_throttled(
            logging.WARNING, "scope does not take messages: scope=%s reason=%s", scope, reason
        )

    async def _bury_unknown(self) -> None:
        """Turn messages to scopes that no directory entry names, or to this one, into dead letters."""
        others = json(each for each in self._known if each != self._origin)
        while names := await self._waiting("outbound_elsewhere", others):
            if not await self._claims_faulty(names):
                return

    async def _claims_faulty(self, names: Sequence[str]) -> bool:
        claimed = await self._claims.claim(names, self._claims.new_name(), lease_s=_LEASE_S, limit=_BATCH)
        await self._claims.bury([(message, self._fault(message) or "no such scope") for message in claimed])
        return bool(claimed)

    async def _forget_arrivals(self) -> None:
        """Forget arrivals, and look for old ones rarely: they are kept longer than any message may wait."""
        if self._monotonic() < self._forget_at:
            return
        values = (*self._mesh, self._clock.now_ms, ARRIVALS_MS)
        if not (await self._store.read(SQL["has_old_arrivals"], values)).value or await self._forget_old():
            self._forget_at = self._monotonic() + _FORGET_EACH_S

    async def _forget_old(self) -> bool:
        """Forget old arrivals in batches. Return whether none are left; otherwise the next turn goes on."""
        forget = Statement(SQL["forget_arrivals"], (*self._mesh, ARRIVALS_MS, _FORGET_BATCH))
        for _ in range(_FORGET_BATCHES):
            if (await self._store.write(Script(forget, answer=CHANGED))).rows.value < _FORGET_BATCH:
                return True
        return False
