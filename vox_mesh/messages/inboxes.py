"""Inboxes: announce the ones received here, poll them, and lease the ones received nowhere else.

A lease is the right of an inbox's only receiver to hand out relayed messages without a claim. Inboxes of
roles are not leased: another node must be able to take over from a receiver that crashed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from vox_mesh.errors import DatabaseUnavailable, MeshError
from vox_mesh.messages.claims import MIN_LEASE_S, Claims, firsts_of_pairs
from vox_mesh.messages.relay_buffer import RelayBuffer
from vox_mesh.messages.scripts import announce_script, json, lease_script, sql
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.messages.records import Message
from vox_mesh.model.nodes.liveness import DEAD_AFTER_TICKS
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.background import RunInBackground
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

LEASE_S: Final = 60.0
"""How long a lease lasts after its last renewal. Another receiver of the inbox may have to wait as long."""

_RENEW_INTERVAL_S: Final = LEASE_S / 3
_MARGIN_S: Final = 1.0
"""A lease is given up this much before the database ends it: clocks do not run at exactly the same rate."""

_WRITE_TIMEOUT_S: Final = 5.0
_READ_TIMEOUT_S: Final = 1.0
_ANNOUNCE_INTERVAL_S: Final = 30.0
_MAX_ANNOUNCED: Final = 1_024


class LocalInboxes:
    """The inboxes that the agents of this process receive from."""

    def __init__(
        self,
        store: Store,
        writer: OpLogWriter,
        clock: MeshClock,
        relay_buffer: RelayBuffer,
        run_in_background: RunInBackground,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._mesh = store.mesh_id
        self._writer = writer
        self._relay_buffer = relay_buffer
        self._run_in_background = run_in_background
        self._monotonic = monotonic
        self._announced = Recent[str, float](_MAX_ANNOUNCED)  # names, and when they were announced
        self._unannounced: set[str] = set()
        self.leases = InboxLeases(store, clock, self._receiver, monotonic)

    def _receiver(self) -> str:
        """Return the name of this process as a receiver: its node, or the chain of a command."""
        own = self._writer.identity
        return own.chain if own.is_command else own.node_id

    # --- announcing ------------------------------------------------------------------------------

    async def announce(self, names: Sequence[str] | None = None) -> None:
        """Record that these inboxes, by default all with a consumer here, are received on this node."""
        names = self._relay_buffer.names if names is None else names
        if names:
            own = self._writer.identity
            node = "" if own.is_command else own.node_id
            with suppress(MeshError):  # they are found without the relay, and announced again later
                await self._store.write(announce_script(self._mesh, names, node, self._receiver()))

    def announce_soon(self, names: Sequence[str]) -> None:
        """Announce these names, in one write for all that begin together."""
        if not self._unannounced:
            self._run_in_background(self._announce_all())
        self._unannounced.update(names)

    async def _announce_all(self) -> None:
        names, self._unannounced = list(self._unannounced), set()
        await self.announce(names)

    def announce_if_due(self, names: Sequence[str]) -> None:
        """Announce these names now and then, so that a node which leases the inbox sees other receivers."""
        now = self._monotonic()
        if any(now - self._announced.get(name, float("-inf")) > _ANNOUNCE_INTERVAL_S for name in names):
            for name in names:
                self._announced[name] = now
            self._run_in_background(self.announce(names))

    # --- leasing ---------------------------------------------------------------------------------

    async def renew_leases(self) -> None:
        """Acquire or renew the leases of the inboxes that are received only here."""
        names = self._relay_buffer.names
        await self.leases.run_once(names, partial(self._in_use, names))
        for name in names:
            if (until := self.leases.until(name)) is not None:
                self._relay_buffer.holds.extend(name, until)

    def _in_use(self, names: Sequence[str]) -> Collection[str]:
        """Return the inboxes of messages that were handed out under a lease and are not settled yet."""
        return names if self._store.is_spooling else self._relay_buffer.holds.receivers()

    async def leave(self, names: Sequence[str]) -> None:
        """Stop receiving from these. The lease of an inbox with unsettled messages is left to expire."""
        if not self.leases.is_held:
            return
        in_use = self._in_use(names)
        if free := [name for name in names if name not in in_use]:
            await self.leases.leave(free)


InUse = Callable[[], Collection[str]]
"""Returns the inboxes of messages that were handed out under a lease and are not settled yet."""


class InboxLeases:
    """Lease the inboxes that are received only here.

    While a lease lasts, the database grants claims from that inbox to this node alone. If others want to
    receive from it, the lease is released with the next `run_once`.
    """

    def __init__(
        self, store: Store, clock: MeshClock, node: Callable[[], str], monotonic: Callable[[], float]
    ) -> None:
        self._store = store
        self._mesh = store.mesh_id
        self._clock = clock
        self._node = node
        self._monotonic = monotonic
        self._until: dict[str, float] = {}  # inboxes, and when their leases end by our own clock
        self._left: set[str] = set()  # inboxes left since leases were last requested
        self._asked_at = float("-inf")
        self._leased_at = 0.0  # the time of the last grant, by the clock that counts suspended time

    def until(self, name: str) -> float | None:
        """Return when this node's lease of an inbox ends by our own clock; `None` if there is none."""
        until = self._until.get(name)
        if until is None or self._clock.started() - self._leased_at >= LEASE_S - _MARGIN_S:
            return None
        return until if self._monotonic() < until else None

    @property
    def is_held(self) -> bool:
        """Return whether there is, or was, any lease."""
        return bool(self._until)

    async def run_once(self, names: Sequence[str], in_use: InUse) -> None:
        """Acquire, renew or release the leases of these inboxes.

        Those of the inboxes `in_use` are renewed even if others want to receive, and never released:
        messages that were handed out under them are not settled yet.
        """
        if names and (self._is_due or await self._has_rivals()):
            with suppress(MeshError):
                await self._renew(names, in_use)

    @property
    def _is_due(self) -> bool:
        return self._monotonic() - self._asked_at >= _RENEW_INTERVAL_S

    async def _has_rivals(self) -> bool:
        if not self._until:
            return False
        since_ms = self._clock.now_ms - round(LEASE_S * 1_000)
        values = (*self._mesh, json(self._until), self._node(), since_ms)
        with suppress(DatabaseUnavailable):
            return bool(await self._store.read(sql("other_receivers"), values, timeout=_READ_TIMEOUT_S))
        return False

    async def _renew(self, names: Sequence[str], in_use: InUse) -> None:
        sent, started = self._monotonic(), self._clock.started()
        self._left.clear()
        script = lease_script(
            self._mesh,
            names,
            self._node(),
            lease_ms=round(LEASE_S * 1_000),
            in_use=list(in_use()),
            dead_after=DEAD_AFTER_TICKS,
        )
        leased = {
            row[0] for row in (await self._store.write(script, timeout=_WRITE_TIMEOUT_S)).rows
        } - self._left
        self._asked_at, self._leased_at = sent, started
        lost = [name for name in self._until if name not in leased]
        self._until = dict.fromkeys(leased, sent + LEASE_S - _MARGIN_S)
        used = in_use()  # including messages handed out while we waited
        if free := [name for name in lost if name not in used]:  # released, so that others can receive
            await self._store.write(self._script("release_leases", free), timeout=_WRITE_TIMEOUT_S)

    def forget(self) -> None:
        """Stop relying on leases, and request new ones: the database was rolled back."""
        self._until.clear()
        self._asked_at = float("-inf")

    async def leave(self, names: Sequence[str]) -> None:
        """Stop receiving from these inboxes."""
        self._left.update(names)
        for name in names:
            self._until.pop(name, None)
        with suppress(MeshError, TimeoutError):  # otherwise the leases expire
            async with asyncio.timeout(_READ_TIMEOUT_S):
                await self._store.write(self._script("stop_receiving", names), timeout=_READ_TIMEOUT_S)

    def _script(self, name: str, names: Sequence[str]) -> Script:
        return Script(Statement(sql(name), (*self._mesh, json(names), self._node())))


class InboxPoller:
    """Claim messages for one call, without a consumer that goes on receiving."""

    def __init__(
        self,
        claims: Claims,
        relay_buffer: RelayBuffer,
        run_in_background: RunInBackground,
        monotonic: Callable[[], float],
    ) -> None:
        self._claims = claims
        self._relay_buffer = relay_buffer
        self._run_in_background = run_in_background
        self._monotonic = monotonic

    async def claim(self, names: Sequence[str], *, limit: int, lease_s: float) -> list[Message]:
        """Claim the messages that are ready now. If no answer comes, whatever was claimed is released."""
        deadline = self._monotonic() + lease_s
        claim_name = self._claims.new_name()
        try:
            messages = await self._claims.claim(names, claim_name, lease_s=lease_s, limit=limit)
        except (asyncio.CancelledError, MeshError):
            self._run_in_background(self._undo(names, claim_name, limit))
            raise
        messages = self._without_held(self._without_done(messages), deadline)
        self._relay_buffer.drop_claimed(messages)
        for message in messages:
            self._claims.hand_out(message, deadline)
        return messages

    async def _undo(self, names: Sequence[str], claim_name: str, limit: int) -> None:
        """Release the messages that a claim got, or would still get."""
        try:
            messages = await self._claims.claim(names, claim_name, lease_s=MIN_LEASE_S, limit=limit)
            await self._claims.release(messages, firsts_of_pairs(messages))
        except MeshError:
            await self._claims.release_claim(names, claim_name)

    def _without_done(self, messages: list[Message]) -> list[Message]:
        """Return the messages that were not acknowledged here before; the others are acknowledged again."""
        done = [each for each in messages if self._relay_buffer.is_done(each)]
        if done:
            self._run_in_background(self._claims.ack_again(done))
        return [each for each in messages if each not in done]

    def _without_held(self, messages: list[Message], deadline: float) -> list[Message]:
        """Return the messages of pairs of which no consumer of this node holds a relayed one."""
        held = self._relay_buffer.holds.cover(messages, deadline, but=())
        if not held:
            return messages
        pairs = {each.pair for each in held}
        behind = [each for each in messages if each.pair in pairs and each not in held]
        self._run_in_background(self._claims.release(behind, ()))
        return [each for each in messages if each.pair not in pairs]
