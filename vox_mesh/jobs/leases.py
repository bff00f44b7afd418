"""Leases: those of the jobs in hand are renewed in time, and a job whose lease is lost is stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import orjson

from vox_mesh.errors import MeshError, Refused
from vox_mesh.jobs.moves import Moves
from vox_mesh.jobs.roster import Roster
from vox_mesh.model.jobs import Job
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_RENEW_AT: Final = 1 / 3  # of a lease
_CALM_S: Final = 0.1
_LEAST_S: Final = 0.01
_AGAIN_S: Final = 1.0


@dataclass(slots=True)
class _Held:
    job: Job
    lease_s: float
    until: float  # by the clock that never steps, counted from when the claim was first sent

    @property
    def renew_at(self) -> float:
        return self.until - self.lease_s * (1 - _RENEW_AT)


class Leases:
    """The leases of one worker."""

    def __init__(
        self, store: Store, moves: Moves, roster: Roster, node_id: str, monotonic: Callable[[], float]
    ) -> None:
        self._store = store
        self._moves = moves
        self._roster = roster
        self._node_id = node_id
        self._monotonic = monotonic
        self._held: dict[str, _Held] = {}
        self._wake = asyncio.Event()
        self._is_to_look = False
        self.cancelled: set[str] = set()
        """The jobs that are stopped though they are still ours."""
        self.lost: Callable[[Job], None] = lambda job: None
        """Called with a job that is not ours any more."""

    @property
    def now(self) -> float:
        """The time from which a lease is counted: take it before the claim is sent."""
        return self._monotonic()

    def hold(self, job: Job, sent: float, lease_ms: int) -> None:
        """A job is ours, for so long from when that was asked for."""
        lease_s = lease_ms / 1_000
        self._held[job.job_id] = _Held(job, lease_s, sent + lease_s)
        self._wake.set()

    def let_go(self, job: Job) -> None:
        """A job is in hand no more."""
        self._held.pop(job.job_id, None)
        self.cancelled.discard(job.job_id)

    def look_soon(self) -> None:
        """Something was committed: it may be that a job was taken from us."""
        self._is_to_look = True
        self._wake.set()

    async def run(self) -> None:
        """Keep the leases, until cancelled."""
        while True:
            self._wake.clear()
            await self._renew()
            if self._is_to_look and self._held:
                self._is_to_look = False
                await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._wake.wait()
                    if self._held:
                        await asyncio.sleep(_CALM_S)  # a busy mesh commits all the time

    def _pause_s(self) -> float | None:
        if not self._held:
            return None
        now = self._monotonic()
        next_s = min(min(each.renew_at, each.until) for each in self._held.values())
        return max(_LEAST_S, next_s - now)

    async def _renew(self) -> None:
        now = self._monotonic()
        for held in list(self._held.values()):
            if held.until <= now:
                self._lose(held)
        groups: dict[float, list[_Held]] = {}
        for held in self._held.values():
            if held.renew_at <= now:
                groups.setdefault(held.lease_s, []).append(held)
        for lease_s, group in groups.items():
            await self._renew_group(lease_s, group)

    async def _renew_group(self, lease_s: float, group: list[_Held]) -> None:
        items = [{"job_id": each.job.job_id, "claim_token": each.job.claim_token} for each in group]
        sent = self._monotonic()
        room_s = min(each.until for each in group) - sent
        try:
            script = self._moves.renew(items, round(lease_s * 1_000))
            outcome = await self._store.write(script, timeout=min(max(room_s, _CALM_S), 10.0))
            kept = set(orjson.loads(outcome.rows[0]["moved"]))
        except Refused:
            kept = set()
        except MeshError as error:
            _log.warning("leases could not be renewed: %s", error.line)
            await asyncio.sleep(min(_AGAIN_S, max(_CALM_S, room_s / 4)))
            return
        for each in group:
            if each.job.job_id in kept:
                each.until = sent + lease_s
            elif self._held.get(each.job.job_id) is each:
                self._lose(each)

    async def _look(self) -> None:
        """See whether a job that we work on was aborted, or given back by hand."""
        pairs = [(each.job.job_id, each.job.claim_token) for each in self._held.values()]
        try:
            gone = await self._roster.not_held(pairs, self._node_id)
        except MeshError:
            return
        for job_id in gone:
            held = self._held.get(job_id)
            if held is not None and (job_id, held.job.claim_token) in pairs:
                self._lose(held)

    def _lose(self, held: _Held) -> None:
        self._held.pop(held.job.job_id, None)
        self.lost(held.job)
