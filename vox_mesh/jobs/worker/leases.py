"""Leases: renew the leases of running jobs, and stop a job whose lease is lost."""

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

_RENEW_FRACTION: Final = 1 / 3  # of the lease
_DEBOUNCE_S: Final = 0.1
_MIN_PAUSE_S: Final = 0.01
_MAX_RENEW_TIMEOUT_S: Final = 10.0
_RETRY_DELAY_S: Final = 1.0
_NEVER: Final = float("inf")


ToBoundary = Callable[[str, bool], int]
"""Return the ms until the current phase or bar ends or, if the flag is true, until the following one ends."""


class _Lease:
    """The lease of a held job. Times are monotonic seconds, counted from when the claim was first sent."""

    def __init__(self, job: Job, lease_s: float, sent: float, on_lost: Callable[[], None]) -> None:
        self.job = job
        self.on_lost = on_lost
        self.lease_s = lease_s
        self.alarm: asyncio.TimerHandle | None = None
        self.is_ending = False
        self.mark_renewed(sent)

    def mark_renewed(self, sent: float) -> None:
        """Count the lease from the time the renewal was sent."""
        self.until = sent + self.lease_s
        self.renew_at = sent + self.lease_s * _RENEW_FRACTION


class Leases:
    """The leases of one worker."""

    def __init__(
        self,
        store: Store,
        transitions: JobTransitions,
        queries: JobQueries,
        node_id: str,
        monotonic: Callable[[], float],
        to_boundary: ToBoundary | None = None,
    ) -> None:
        self._store = store
        self._transitions = transitions
        self._queries = queries
        self._node_id = node_id
        self._monotonic = monotonic
        self._to_boundary = to_boundary
        self._held: dict[str, _Lease] = {}
        self._wake = asyncio.Event()
        self._must_verify = False
        self.stale = 0
        """The number of renewals rejected because the claim was over."""

    @property
    def now(self) -> float:
        """Return the monotonic time. Read it before a claim is sent: the lease counts from then."""
        return self._monotonic()

    def ms_to_boundary(self, job: Job, *, following: bool = False) -> int | None:
        """Return the lease in ms that a claim would have now, `None` if the rhythm does not set it."""
        until = job.held_until
        return None if until is None or self._to_boundary is None else self._to_boundary(until, following)

    def hold(self, job: Job, sent: float, lease_ms: int, on_lost: Callable[[], None]) -> None:
        """Track the lease of a claimed job, counted from the time the claim was sent.

        `on_lost` is called when the lease expires or the claim is found to be over.
        """
        held = self._held[job.job_id] = _Lease(job, lease_ms / 1_000, sent, on_lost)
        self._set_alarm(held)
        self._wake.set()

    def holds(self, job: Job) -> bool:
        """Return whether the lease of a job is tracked."""
        return job.job_id in self._held

    def mark_ending(self, job: Job) -> None:
        """Mark a job as being completed: it is not stopped any more, its completion may be rejected."""
        if (held := self._held.get(job.job_id)) is not None:
            held.is_ending = True

    def release(self, job: Job) -> None:
        """Stop tracking the lease of a job."""
        if (held := self._held.pop(job.job_id, None)) is not None and held.alarm is not None:
            held.alarm.cancel()

    def verify_soon(self) -> None:
        """Check soon whether a claim was lost, because something was committed."""
        self._must_verify = True
        self._wake.set()

    # --- expiry ----------------------------------------------------------------------------------

    def _set_alarm(self, held: _Lease) -> None:
        """Stop the job when its lease expires, whatever else is being awaited."""
        if held.alarm is not None:
            held.alarm.cancel()
        left_s = max(0.0, held.until - self._monotonic())
        held.alarm = asyncio.get_running_loop().call_later(left_s, self._expire, held)

    def _expire(self, held: _Lease) -> None:
        if held.until > self._monotonic():
            self._set_alarm(held)
        else:
            self._lose(held)

    def _lose(self, held: _Lease) -> None:
        if self._held.get(held.job.job_id) is held and not held.is_ending:
            self.release(held.job)
            held.on_lost()

    # --- renewal ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Renew the leases until cancelled."""
        while True:
            self._wake.clear()
            try:
                await asyncio.gather(self._renew(), self._verify_claims())
            except Exception as error:
                self._store.faults.note("leases", error)
                await asyncio.sleep(_RETRY_DELAY_S)
            await self._wait()

    @property
    def _next_renewal(self) -> float:
        return min((each.renew_at for each in self._held.values()), default=_NEVER)

    async def _wait(self) -> None:
        """Wait until a lease must be renewed or a change asks for a check."""
        renew_at = self._next_renewal
        pause_s = None if renew_at == _NEVER else max(_MIN_PAUSE_S, renew_at - self._monotonic())
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
                if self._held:
                    await asyncio.sleep(_DEBOUNCE_S)  # a busy mesh commits all the time

    async def _renew(self) -> None:
        now = self._monotonic()
        groups: dict[float, list[_Lease]] = {}
        for held in self._held.values():
            if held.renew_at <= now:
                if (beats_ms := self.ms_to_boundary(held.job, following=True)) is not None:
                    held.lease_s = beats_ms / 1_000
                groups.setdefault(held.lease_s, []).append(held)
        await asyncio.gather(*(self._renew_group(*each) for each in groups.items()))

    async def _renew_group(self, lease_s: float, group: list[_Lease]) -> None:
        items = [{"job_id": each.job.job_id, "claim_token": each.job.claim_token} for each in group]
        sent = self._monotonic()
        room_s = max(_DEBOUNCE_S, min(each.until for each in group) - sent)
        try:
            script = self._transitions.renew(items, round(lease_s * 1_000))
            outcome = await self._store.write(script, timeout=min(room_s, _MAX_RENEW_TIMEOUT_S))
            renewed = set(orjson.loads(outcome.rows[0]["moved"]))
        except Refused:
            renewed = set()
        except MeshError as error:
            _log.warning("lease renewal failed: jobs=%d: %s", len(group), error.line)
            retry_at = self._monotonic() + min(_RETRY_DELAY_S, room_s / 4)
            for each in group:
                each.renew_at = retry_at
            return
        for each in group:
            if each.job.job_id in renewed:
                each.mark_renewed(sent)
                self._set_alarm(each)
            else:
                self.stale += 1
                each.renew_at = _NEVER  # also while its completion, which will be rejected, is being written
                self._lose(each)

    async def _verify_claims(self) -> None:
        """Stop the jobs that were aborted or released by an operator."""
        held = [each for each in self._held.values() if not each.is_ending]
        if not self._must_verify or not held:
            return
        self._must_verify = False
        pairs = [(each.job.job_id, each.job.claim_token) for each in held]
        try:
            lost = set(await self._queries.not_held(pairs, self._node_id))
        except MeshError:
            return
        for each in held:
            if each.job.job_id in lost:
                self._lose(each)
