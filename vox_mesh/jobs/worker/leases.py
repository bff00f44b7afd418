"""Leases: those of the jobs in hand are renewed in time, and a job whose lease is lost is stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import orjson

from vox_mesh.errors import MeshError, Refused
from vox_mesh.jobs.queries import JobQueries
from vox_mesh.jobs.transitions import JobTransitions
from vox_mesh.model.jobs.records import Job
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_RENEW_AT: Final = 1 / 3  # of a lease
_CALM_S: Final = 0.1
_LEAST_S: Final = 0.01
_LONGEST_S: Final = 10.0
_AGAIN_S: Final = 1.0
_NEVER: Final = float("inf")


ToBoundary = Callable[[str, bool], int]
"""How many ms are left until the phase or the bar ends; or, if that is asked, until the one after it does."""


class _Held:
    """A job in hand. Times are by the clock that never steps, from when the claim was first sent."""

    def __init__(self, job: Job, lease_s: float, sent: float) -> None:
        self.job = job
        self.lease_s = lease_s
        self.alarm: asyncio.TimerHandle | None = None
        self.is_ending = False
        self.renewed(sent)

    def renewed(self, sent: float) -> None:
        """It is ours from when that was asked for."""
        self.until = sent + self.lease_s
        self.renew_at = sent + self.lease_s * _RENEW_AT


class Leases:
    """The leases of one worker."""

    def __init__(
        self,
        store: Store,
        moves: JobTransitions,
        roster: JobQueries,
        node_id: str,
        monotonic: Callable[[], float],
        to_boundary: ToBoundary | None = None,
    ) -> None:
        self._store = store
        self._moves = moves
        self._roster = roster
        self._node_id = node_id
        self._monotonic = monotonic
        self._to_boundary = to_boundary
        self._held: dict[str, _Held] = {}
        self._wake = asyncio.Event()
        self._is_to_look = False
        self.cancelled: set[str] = set()
        """The jobs that are stopped though they are still ours."""
        self.lost: Callable[[Job], None] = lambda job: None
        """Called with a job that is not ours any more."""
        self.stale = 0
        """How many leases were not renewed because their claims are over."""

    @property
    def now(self) -> float:
        """The time from which a lease is counted: take it before the claim is sent."""
        return self._monotonic()

    def ms_to_boundary(self, job: Job, *, following: bool = False) -> int | None:
        """For how long a claim of the job would hold now, if that depends on the rhythm."""
        until = job.held_until
        return None if until is None or self._to_boundary is None else self._to_boundary(until, following)

    def hold(self, job: Job, sent: float, lease_ms: int) -> None:
        """A job is ours, for so long from when that was asked for."""
        held = self._held[job.job_id] = _Held(job, lease_ms / 1_000, sent)
        self._set_alarm(held)
        self._wake.set()

    def holds(self, job: Job) -> bool:
        """Return whether a job is in hand."""
        return job.job_id in self._held

    def ending(self, job: Job) -> None:
        """The work is done, and its end is being written: it can't be lost any more, only refused."""
        if (held := self._held.get(job.job_id)) is not None:
            held.is_ending = True

    def let_go(self, job: Job) -> None:
        """A job is in hand no more."""
        if (held := self._held.pop(job.job_id, None)) is not None and held.alarm is not None:
            held.alarm.cancel()
        self.cancelled.discard(job.job_id)

    def look_soon(self) -> None:
        """Something was committed: it may be that a job was taken from us."""
        self._is_to_look = True
        self._wake.set()

    # --- the end of a lease ----------------------------------------------------------------------

    def _set_alarm(self, held: _Held) -> None:
        """Whatever else is being waited for, the work stops when its lease is over."""
        if held.alarm is not None:
            held.alarm.cancel()
        left_s = max(0.0, held.until - self._monotonic())
        held.alarm = asyncio.get_running_loop().call_later(left_s, self._ring, held)

    def _ring(self, held: _Held) -> None:
        if held.until > self._monotonic():
            self._set_alarm(held)
        else:
            self._lose(held)

    def _lose(self, held: _Held) -> None:
        if self._held.get(held.job.job_id) is held and not held.is_ending:
            self.let_go(held.job)
            self.lost(held.job)

    # --- keeping it ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the leases, until cancelled."""
        while True:
            self._wake.clear()
            try:
                await asyncio.gather(self._renew(), self._look())
            except Exception as error:
                self._store.faults.note("leases", error)
                await asyncio.sleep(_AGAIN_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._wake.wait()
                    if self._held:
                        await asyncio.sleep(_CALM_S)  # a busy mesh commits all the time

    def _pause_s(self) -> float | None:
        renew_at = min((each.renew_at for each in self._held.values()), default=_NEVER)
        return None if renew_at == _NEVER else max(_LEAST_S, renew_at - self._monotonic())

    async def _renew(self) -> None:
        now = self._monotonic()
        groups: dict[float, list[_Held]] = {}
        for held in self._held.values():
            if held.renew_at <= now:
                if (beats_ms := self.ms_to_boundary(held.job, following=True)) is not None:
                    held.lease_s = beats_ms / 1_000
                groups.setdefault(held.lease_s, []).append(held)
        await asyncio.gather(*(self._renew_group(*each) for each in groups.items()))

    async def _renew_group(self, lease_s: float, group: list[_Held]) -> None:
        items = [{"job_id": each.job.job_id, "claim_token": each.job.claim_token} for each in group]
        sent = self._monotonic()
        room_s = max(_CALM_S, min(each.until for each in group) - sent)
        try:
            script = self._moves.renew(items, round(lease_s * 1_000))
            outcome = await self._store.write(script, timeout=min(room_s, _LONGEST_S))
            kept = set(orjson.loads(outcome.rows[0]["moved"]))
        except Refused:
            kept = set()
        except MeshError as error:
            _log.warning("leases could not be renewed: %s", error.line)
            again = self._monotonic() + min(_AGAIN_S, room_s / 4)
            for each in group:
                each.renew_at = again
            return
        for each in group:
            if each.job.job_id in kept:
                each.renewed(sent)
                self._set_alarm(each)
            else:
                self.stale += 1
                each.renew_at = _NEVER  # also while its end, which will be refused, is being written
                self._lose(each)

    async def _look(self) -> None:
        """See whether a job that we work on was aborted, or given back by hand."""
        held = [each for each in self._held.values() if not each.is_ending]
        if not self._is_to_look or not held:
            return
        self._is_to_look = False
        pairs = [(each.job.job_id, each.job.claim_token) for each in held]
        try:
            gone = set(await self._roster.not_held(pairs, self._node_id))
        except MeshError:
            return
        for each in held:
            if each.job.job_id in gone:
                self._lose(each)
