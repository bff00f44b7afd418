"""Leases: renew the leases of running jobs, and stop a job whose lease is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final

import orjson

from vox_mesh.errors import MeshError, Refused
from vox_mesh.jobs.queries import JobQueries
from vox_mesh.jobs.transitions import JobTransitions
from vox_mesh.model.jobs.records import Job
from vox_mesh.nodes.leases import LeaseRenewer
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_DEBOUNCE_S: Final = 0.1
_RETRY_DELAY_S: Final = 1.0
_MIN_RENEW_TIMEOUT_S: Final = 0.1
_MAX_RENEW_TIMEOUT_S: Final = 10.0

ToBoundary = Callable[[str, bool], int]
"""Return the ms until the current phase or bar ends or, if the flag is true, until the following one ends."""


class _Lease:
    """The lease of a held job. Times are monotonic seconds, counted from when the claim was first sent."""

    def __init__(self, job: Job, ttl: float, sent: float, on_lost: Callable[[], None]) -> None:
        self.job = job
        self.on_lost = on_lost
        self.ttl = ttl
        self.deadline = sent + ttl
        self.is_ending = False


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
        self._renewer: LeaseRenewer[_Lease] = LeaseRenewer(
            self._renew, self._lose, monotonic, store.faults, task_name="vox-mesh-job-renewal"
        )
        self._must_verify = False
        self._wake = asyncio.Event()
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
        """Renew the lease of a claimed job, counted from the time the claim was sent.

        `on_lost` is called when the lease expires or the claim is found to be over.
        """
        lease = self._held[job.job_id] = _Lease(job, lease_ms / 1_000, sent, on_lost)
        self._renewer.hold(lease)
        if self._must_verify:
            self._wake.set()

    def holds(self, job: Job) -> bool:
        """Return whether the lease of a job is held."""
        return job.job_id in self._held

    def mark_ending(self, job: Job) -> None:
        """Mark a job as being completed: it is not stopped any more, its completion may be rejected."""
        if (lease := self._held.get(job.job_id)) is not None:
            lease.is_ending = True

    def release(self, job: Job) -> None:
        """Leave the lease of a job alone from now on."""
        if (lease := self._held.pop(job.job_id, None)) is not None:
            self._renewer.release(lease)

    def close(self) -> None:
        """Renew no lease from now on."""
        self._renewer.close()

    def _lose(self, lease: _Lease) -> None:
        if self._held.get(lease.job.job_id) is lease and not lease.is_ending:
            self.release(lease.job)
            lease.on_lost()

    # --- renewal ---------------------------------------------------------------------------------

    async def renew_due(self) -> None:
        """Renew the leases that are due, and stop the jobs whose lease has expired."""
        await self._renewer.renew_due()

    async def _renew(self, leases: Sequence[_Lease]) -> Collection[_Lease]:
        """Renew leases, and return the ones whose claim is over."""
        groups: dict[float, list[_Lease]] = {}
        for lease in leases:
            to_boundary_ms = self.ms_to_boundary(lease.job, following=True)
            ttl = lease.ttl if to_boundary_ms is None else to_boundary_ms / 1_000
            groups.setdefault(ttl, []).append(lease)
        lost = await asyncio.gather(*(self._renew_group(*each) for each in groups.items()))
        return [lease for group in lost for lease in group]

    async def _renew_group(self, ttl: float, group: list[_Lease]) -> list[_Lease]:
        items = [{"job_id": each.job.job_id, "claim_token": each.job.claim_token} for each in group]
        sent = self._monotonic()
        left_s = max(_MIN_RENEW_TIMEOUT_S, min(each.deadline for each in group) - sent)
        try:
            script = self._transitions.renew(items, round(ttl * 1_000))
            outcome = await self._store.write(script, timeout=min(left_s, _MAX_RENEW_TIMEOUT_S))
            renewed = set(orjson.loads(outcome.rows[0]["moved"]))
        except Refused:
            renewed = set()
        except MeshError as error:
            _log.warning("lease renewal failed: jobs=%d: %s", len(group), error.line)
            return []
        lost = [each for each in group if each.job.job_id not in renewed]
        self.stale += len(lost)
        for each in group:
            if each.job.job_id in renewed:
                each.ttl, each.deadline = ttl, sent + ttl
        return lost

    # --- verification ----------------------------------------------------------------------------

    def verify_soon(self) -> None:
        """Check soon whether a claim was lost, because something was committed."""
        self._must_verify = True
        self._wake.set()

    async def run(self) -> None:
        """Verify the claims of the held jobs when it is asked for, until cancelled."""
        while True:
            await self._wake.wait()
            if self._held:
                await asyncio.sleep(_DEBOUNCE_S)  # a busy mesh commits all the time
            self._wake.clear()
            try:
                await self._verify_claims()
            except Exception as error:
                self._store.faults.note("leases", error)
                await asyncio.sleep(_RETRY_DELAY_S)

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
