"""Claiming: claim and start jobs in one request, and reconcile claims whose outcome is unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from vox_mesh.errors import LimitReached, MeshError, NotGranted, Refused
from vox_mesh.jobs.queries import Claimable, JobQueries
from vox_mesh.jobs.transitions import AT_CAPACITY, OUTSIDE, ROUTES_CHANGED, JobTransitions
from vox_mesh.jobs.worker.attempt_result import AttemptResult
from vox_mesh.jobs.worker.chooser import Chooser
from vox_mesh.jobs.worker.finisher import Finisher
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.model.locks.records import next_token
from vox_mesh.model.rhythm.bindings import Opening
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.observability import tracing
from vox_mesh.oplog.grants.permit import Permit
from vox_mesh.store.script import Verdict
from vox_mesh.store.store import Store

if TYPE_CHECKING:
    from vox_mesh.model.grants.limits import Use

THROTTLE_S: Final = 0.25
"""The seconds for which a kind is not claimed after its limit was reached."""

_SKIP_S: Final = 1.0
_SLOW_S: Final = 0.5  # a slower claim may have been refused only because it was late
_HELD_BACK: Final = "held_back"


class Claimed(NamedTuple):
    """A claimed job, with the monotonic time at which the claim was sent and its lease."""

    job: Job
    sent: float
    lease_ms: int


class ClaimReconciler:
    """Releases jobs that the database shows as claimed by this node but that do not run here.

    Either the previous incarnation held them, or the answer to a claim was lost.
    """

    def __init__(self, queries: JobQueries, finisher: Finisher, node_id: str) -> None:
        self._queries = queries
        self._finisher = finisher
        self._node_id = node_id
        self._requested = 1  # the first run is for the previous incarnation
        self._served = 0

    @property
    def is_due(self) -> bool:
        """Return whether such jobs may exist."""
        return self._served < self._requested

    @property
    def has_run(self) -> bool:
        """Return whether the jobs of the previous incarnation are released."""
        return self._served > 0

    def request(self) -> None:
        """Ask for a run, because such jobs may exist."""
        self._requested += 1

    async def run_once(self, running: Collection[str]) -> None:
        """Release the claimed jobs that are not among the running ones.

        A job of the previous incarnation counts as interrupted, since it may have crashed it. One that must
        not be run again is left to its lease.
        """
        requested = self._requested
        held = await self._queries.held_by(self._node_id, fresh=True)
        results = [self._release(job) for job in held if job.job_id not in running]
        await asyncio.gather(*(self._finisher.finish(each) for each in results if each is not None))
        self._served = requested

    def _release(self, job: Job) -> AttemptResult | None:
        if self.has_run:
            if not job.max_interruptions:
                return None  # its attempt may have begun
            return AttemptResult(job, JobState.PENDING, "its worker had no answer", delay_ms=job.backoff_ms)
        result = AttemptResult(job, JobState.PENDING, "its worker was gone", is_interrupted=True)
        return result if result.is_requeued else None


class JobClaimer:
    """Claims jobs for one worker, and skips for a while the ones that were not claimed."""

    def __init__(
        self,
        store: Store,
        transitions: JobTransitions,
        chooser: Chooser,
        on_unknown: Callable[[], None],
        clock: MeshClock,
        node_id: str,
        monotonic: Callable[[], float],
        causes_of: Callable[[Job], Iterable[str]],
        own_agent: Callable[[], str],
    ) -> None:
        """`on_unknown` is called when jobs may have been claimed that this process does not know of.

        `own_agent` is charged for jobs that are claimed on behalf of no other.
        """
        self._store = store
        self._transitions = transitions
        self._chooser = chooser
        self._causes_of = causes_of
        self._own_agent = own_agent
        self._on_unknown = on_unknown
        self._clock = clock
        self._node_id = node_id
        self._monotonic = monotonic
        self._skipped_until: Recent[tuple[str, int], float] = Recent(4_096)
        self._throttled_until: Recent[str, float] = Recent(1_024)
        self.sent = 0
        """The number of claim requests sent."""

    def is_new(self, job: Claimable) -> bool:
        """Return whether no claim of the job has just failed; the replica may lag behind."""
        return self._skipped_until.get((job.job_id, job.claim_token), 0.0) <= self._monotonic()

    def is_throttled(self, kind: str) -> bool:
        """Return whether the limit of a kind was reached just now."""
        return self._throttled_until.get(kind, 0.0) > self._monotonic()

    async def claim(
        self,
        jobs: Sequence[Job],
        lease_ms: int,
        permit: Permit | None = None,
        within: Opening | None = None,
    ) -> list[Claimed]:
        """Claim and start jobs, on behalf of an agent if one is given, and return the claimed ones.

        If an opening is given, there are none unless the time of the claim is within it.
        """
        began = tracing.began()
        claimed = await self._claim(jobs, lease_ms, permit, within)
        tracing.record_jobs("job claim", (tracing.about(each.job) for each in claimed), began)
        return claimed

    async def _claim(
        self,
        jobs: Sequence[Job],
        lease_ms: int,
        permit: Permit | None,
        within: Opening | None,
    ) -> list[Claimed]:
        agent = self._own_agent() if permit is None else permit.agent
        is_charged = self._chooser.is_any_charged(jobs, agent)
        if not is_charged and all(map(self._chooser.is_plain, {job.kind for job in jobs})):
            claimed = await self._try(jobs, lease_ms, permit, within, short=True)
            if claimed is not None:
                return claimed
        return await self._try(jobs, lease_ms, permit, within, short=False) or []

    async def _try(
        self,
        jobs: Sequence[Job],
        lease_ms: int,
        permit: Permit | None,
        within: Opening | None,
        *,
        short: bool,
    ) -> list[Claimed] | None:
        """Send the claim; `short` needs all jobs to be claimable, and `None` asks for the long form."""
        sent, started_ms = self._monotonic(), self._clock.now_ms
        token = next_token(max(job.claim_token for job in jobs), started_ms)
        items = [{"job_id": job.job_id, "claim_token": token, "last_token": job.claim_token} for job in jobs]
        transitions = self._transitions
        starts = [{"job_id": job.job_id, "claim_token": token} for job in jobs]
        routing, causes = self._chooser.routing, [each for job in jobs for each in self._causes_of(job)]
        agent = self._own_agent() if permit is None else permit.agent
        if permit is not None:
            permit.using(lambda: _uses(jobs, token))
        if short:
            scripts = transitions.take(
                items, starts, lease_ms, routing, causes, permit, within, agent, started_ms
            )
        else:
            reserves = self._chooser.is_any_charged(jobs, agent)
            claim_script = transitions.claim(
                *(items, lease_ms, routing, causes, permit, within, agent),
                reserves=reserves,
                at_ms=started_ms,
            )
            scripts = claim_script, transitions.start(starts, [claim_script.key], started_ms)
        self.sent += 1
        try:
            claim, start = await self._store.write_all(scripts)
            if isinstance(claim, MeshError) and not isinstance(claim, Refused):
                raise claim
        except BaseException:  # the outcome is unknown
            self._on_unknown()
            raise
        if isinstance(claim, NotGranted | LimitReached):
            raise claim
        if isinstance(claim, Refused) and claim.reason == ROUTES_CHANGED:
            self._chooser.invalidate_routes()
            return []
        if isinstance(claim, Refused) and claim.reason in (OUTSIDE, AT_CAPACITY):
            return []
        is_slow = self._monotonic() - sent > _SLOW_S
        if short and isinstance(claim, Refused) and (len(jobs) > 1 or is_slow):
            return None
        if isinstance(start, MeshError) and not isinstance(claim, MeshError):
            self._on_unknown()
        claimed = _moved_jobs(claim, jobs) & _moved_jobs(start, jobs)
        if len(claimed) < len(jobs):
            self._chooser.invalidate_membership()
        for job in jobs:
            if job.job_id not in claimed:
                self._skip(job, claim)
        held = (
            self._as_running(job, token, started_ms, scripts[1].key) for job in jobs if job.job_id in claimed
        )
        return [Claimed(job, sent, lease_ms) for job in held]

    def _as_running(self, job: Job, token: int, started_ms: int, start_op: str) -> Job:
        return job._replace(
            state=JobState.RUNNING,
            claimer=self._node_id,
            claim_token=token,
            attempts=job.attempts + 1,
            started_ms=started_ms,
            last_op=start_op,
        )

    def _skip(self, job: Job, verdict: Verdict) -> None:
        rules = self._chooser.rules_of(job.kind)
        has_limit = rules.max_running is not None or rules.rate is not None
        if has_limit or (isinstance(verdict, Refused) and verdict.reason == _HELD_BACK):
            self._throttled_until[job.kind] = self._monotonic() + THROTTLE_S
        else:
            self._skipped_until[job.job_id, job.claim_token] = self._monotonic() + _SKIP_S


def _moved_jobs(verdict: Verdict, jobs: Sequence[Job]) -> set[str]:
    """Return the ids of the changed jobs; the short form changes all of them."""
    if isinstance(verdict, MeshError):
        return set()
    return set(orjson.loads(verdict.rows[0]["moved"])) if verdict.rows else {job.job_id for job in jobs}


def _uses(jobs: Sequence[Job], token: int) -> list[Use]:
    """Return how jobs that an agent takes are counted: each is open while it is held under this token."""
    # Imported late: few agents have limits.
    from vox_mesh.model.grants.capability import TAKE, Act
    from vox_mesh.model.grants.limits import Item, ItemKind, Use

    acts = (Act(TAKE, job.kind) for job in jobs)
    return [
        Use(act, Item(ItemKind.TAKE, f"{job.job_id} {token}")) for act, job in zip(acts, jobs, strict=True)
    ]
