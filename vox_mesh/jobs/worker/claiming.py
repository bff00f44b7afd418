"""Claiming: jobs become ours in one request, which also starts them; what could not be had is left alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import orjson

from vox_mesh.errors import MeshError, Refused
from vox_mesh.jobs.queries import Claimable
from vox_mesh.jobs.transitions import JobTransitions
from vox_mesh.jobs.worker.choosing import Chooser
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.model.locks.tokens import next_token
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.observability import tracing
from vox_mesh.store.store import Store
from vox_mesh.store.write.request import Verdict

REST_S: Final = 0.25
"""For how long a kind is left alone whose limit is reached."""

_LOST_S: Final = 1.0
_SLOW_S: Final = 0.5  # a claim that takes longer may have been refused for that alone
_HELD_BACK: Final = "held_back"


class Claimed(NamedTuple):
    """A job that is ours, from when that was first asked for."""

    job: Job
    sent: float
    lease_ms: int


class JobClaimer:
    """Claims jobs for one worker."""

    def __init__(
        self,
        store: Store,
        moves: JobTransitions,
        chooser: Chooser,
        clock: MeshClock,
        node_id: str,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._moves = moves
        self._chooser = chooser
        self._clock = clock
        self._node_id = node_id
        self._monotonic = monotonic
        self._passed_over: Recent[tuple[str, int], float] = Recent(4_096)
        self._resting: Recent[str, float] = Recent(1_024)
        self.sent = 0
        """How many claims were sent."""
        self.is_unsure = True
        """Whether the roster may have jobs as ours that we do not have in hand."""

    def is_new(self, job: Claimable) -> bool:
        """Whether it was not tried to claim the job just now; our copy of the database may be behind."""
        return self._passed_over.get((job.job_id, job.claim_token), 0.0) <= self._monotonic()

    def rests(self, kind: str) -> bool:
        """Whether jobs of a kind were held back just now: its limit is reached."""
        return self._resting.get(kind, 0.0) > self._monotonic()

    async def claim(self, jobs: Sequence[Job], lease_ms: int) -> list[Claimed]:
        """Claim and start jobs; those that we got."""
        began = tracing.began()
        claimed = await self._claimed(jobs, lease_ms)
        tracing.record_jobs("job claim", (tracing.about(each.job) for each in claimed), began)
        return claimed

    async def _claimed(self, jobs: Sequence[Job], lease_ms: int) -> list[Claimed]:
        if all(self._chooser.is_plain(job.kind) for job in jobs):
            claimed = await self._try(jobs, lease_ms, short=True)
            if claimed is not None:
                return claimed
        return await self._try(jobs, lease_ms, short=False) or []

    async def _try(self, jobs: Sequence[Job], lease_ms: int, *, short: bool) -> list[Claimed] | None:
        """The same, one way; `None`: some of them may still be had, the long way."""
        sent, started_ms = self._monotonic(), self._clock.now_ms
        token = next_token(max(job.claim_token for job in jobs), started_ms)
        items = [{"job_id": job.job_id, "claim_token": token, "last_token": job.claim_token} for job in jobs]
        moves = self._moves
        begun = [{"job_id": job.job_id, "claim_token": token} for job in jobs]
        scripts = (
            moves.take(items, begun, lease_ms)
            if short
            else (moves.claim(items, lease_ms), moves.start(begun))
        )
        self.sent += 1
        was_unsure, self.is_unsure = self.is_unsure, True  # until there is an answer
        claim, start = await self._store.write_all(scripts)
        if isinstance(claim, MeshError) and not isinstance(claim, Refused):
            raise claim
        self.is_unsure = was_unsure
        is_slow = self._monotonic() - sent > _SLOW_S
        if short and isinstance(claim, Refused) and (len(jobs) > 1 or is_slow):
            return None
        if isinstance(start, MeshError) and not isinstance(claim, MeshError):
            self.is_unsure = True
        ours = _moved(claim, jobs) & _moved(start, jobs)
        if len(ours) < len(jobs):
            self._chooser.surprise()
        for job in jobs:
            if job.job_id not in ours:
                self._pass_over(job, claim)
        held = (self._held(job, token, started_ms) for job in jobs if job.job_id in ours)
        return [Claimed(job, sent, lease_ms) for job in held]

    def _held(self, job: Job, token: int, started_ms: int) -> Job:
        return job._replace(
            state=JobState.RUNNING,
            claimer=self._node_id,
            claim_token=token,
            attempts=job.attempts + 1,
            started_ms=started_ms,
        )

    def _pass_over(self, job: Job, verdict: Verdict) -> None:
        rules = self._chooser.rules_of(job.kind)
        has_limit = rules.max_running is not None or rules.rate is not None
        if has_limit or (isinstance(verdict, Refused) and verdict.reason == _HELD_BACK):
            self._resting[job.kind] = self._monotonic() + REST_S
        else:
            self._passed_over[job.job_id, job.claim_token] = self._monotonic() + _LOST_S


def _moved(verdict: Verdict, jobs: Sequence[Job]) -> set[str]:
    """The jobs that were moved; the short way moves all of them."""
    if isinstance(verdict, MeshError):
        return set()
    return set(orjson.loads(verdict.rows[0]["moved"])) if verdict.rows else {job.job_id for job in jobs}
