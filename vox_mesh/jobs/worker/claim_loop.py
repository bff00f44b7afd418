"""The claim loop: looks for claimable jobs, claims the ones that are this node's turn, and starts them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from vox_mesh.errors import MeshError, StaleIncarnation, StoreClosed
from vox_mesh.heartbeat.presence import Presence
from vox_mesh.jobs.authorship import JobAuthorship
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.queries import Claimable
from vox_mesh.jobs.worker.capacity import Capacity
from vox_mesh.jobs.worker.chooser import Chooser, ClaimChoice
from vox_mesh.jobs.worker.claim_backoff import ClaimBackoff
from vox_mesh.jobs.worker.claimer import THROTTLE_S, ClaimReconciler, JobClaimer
from vox_mesh.jobs.worker.executor import Executor
from vox_mesh.jobs.worker.leases import Leases
from vox_mesh.jobs.worker.limits import ClaimBlock, WorkerLimits
from vox_mesh.model.jobs.policy_roots import allows
from vox_mesh.model.jobs.records import DEFAULT_LEASE_MS, Job
from vox_mesh.model.rhythm.bindings import Opening, Openings
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_MAX_CLAIM: Final = 100
_MIN_WINDOW: Final = 16
_MAX_WINDOW: Final = 512  # ready jobs read per look
_RETRY_DELAY_S: Final = 1.0
_ERROR_BACKOFF_S: Final = (0.5, 5.0)  # the first and the longest delay after looks that raised an error
_RACE_BACKOFF_S: Final = (0.02, 1.0)  # the same after claims that other nodes have won
_IDLE_PAUSE_FACTOR: Final = 4  # pause after a look that claimed nothing, as a multiple of its duration
_GATHER_FACTOR: Final = 2  # wait for more free capacity after a claim, as a multiple of its duration
_MAX_PAUSE_S: Final = 0.03


class NextLook(NamedTuple):
    """When to look for jobs again: after a change or, if `delay_s` is given, at the latest then.

    With `is_backoff`, changes do not shorten the delay.
    """

    delay_s: float | None = None
    is_backoff: bool = False

    @property
    def is_now(self) -> bool:
        """Return whether there is no reason to wait."""
        return self.delay_s == 0.0


AFTER_CHANGE: Final = NextLook()
NOW: Final = NextLook(0.0)


class Survey(NamedTuple):
    """The jobs that are ready for this node, and what keeps others from being claimed."""

    at_ms: int
    kinds: Sequence[str]
    """The kinds that this node may claim."""
    jobs: Sequence[Claimable]
    is_deep: bool
    """Whether more jobs are ready than were read."""
    has_skipped: bool
    """Whether jobs were left out for a moment because a claim has just failed."""
    doubted_s: float | None
    """In how many seconds the first job is looked at again that was not authentic just now."""
    blocked: ClaimBlock
    openings: Openings
    """Which jobs that are bound to the rhythm may be claimed."""


class ClaimLoop:
    """Claims jobs for one worker while it has free capacity."""

    def __init__(
        self,
        store: Store,
        jobs: Jobs,
        presence: Presence,
        capacity: Capacity,
        limits: WorkerLimits,
        leases: Leases,
        chooser: Chooser,
        claimer: JobClaimer,
        reconciler: ClaimReconciler,
        authorship: JobAuthorship,
        executor: Executor,
        wake: asyncio.Event,
        chance: Callable[[], float],
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._queries = jobs.queries
        self._clock = jobs.clock
        self._presence = presence
        self._capacity = capacity
        self._limits = limits
        self._leases = leases
        self._chooser = chooser
        self._claimer = claimer
        self._reconciler = reconciler
        self._authorship = authorship
        self._executor = executor
        self._wake = wake
        self._error_backoff = ClaimBackoff(*_ERROR_BACKOFF_S, chance)
        self._race_backoff = ClaimBackoff(*_RACE_BACKOFF_S, chance)

    async def run(self) -> None:
        """Look for jobs until the capacity is closed. Raises only what a node can't continue after."""
        while self._capacity.total:
            self._wake.clear()
            began = self._leases.now
            next_look = await self._look()
            took_s = self._leases.now - began
            if next_look.is_now:
                await self._gather_capacity(min(_GATHER_FACTOR * took_s, _MAX_PAUSE_S))
            elif next_look.is_backoff:
                await self._back_off(next_look.delay_s or 0.0)
            else:
                await self._wait(next_look, min(_IDLE_PAUSE_FACTOR * took_s, _MAX_PAUSE_S))

    async def _look(self) -> NextLook:
        try:
            next_look = await self.run_once()
            self._error_backoff.reset()
            return next_look
        except (StaleIncarnation, StoreClosed) as error:
            _log.error("worker stopped claiming: %s", error.line)
            raise
        except MeshError as error:
            _log.warning("worker cannot claim: %s", error.line)
        except Exception as error:
            self._store.faults.note("worker", error)
        self._reconciler.request()
        return NextLook(self._error_backoff.next_delay(), is_backoff=True)

    async def _back_off(self, delay_s: float) -> None:
        """Wait for the whole delay, or until the worker is stopped."""
        until = self._leases.now + delay_s
        while self._capacity.total and (left_s := until - self._leases.now) > 0:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._wake.wait()

    async def _wait(self, next_look: NextLook, least_s: float) -> None:
        """Wait for the next look, at least for a moment: a busy mesh commits all the time."""
        until = self._leases.now + least_s
        with suppress(TimeoutError):
            async with asyncio.timeout(next_look.delay_s):
                await self._wake.wait()
        await asyncio.sleep(max(0.0, until - self._leases.now))

    async def _gather_capacity(self, most_s: float) -> None:
        """Wait briefly for more free capacity while other nodes claim too: a small claim costs as much."""
        until = self._leases.now + most_s
        while self._chooser.count > 1 and not self._capacity.has_many_free and self._leases.now < until:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(until - self._leases.now):
                    await self._wake.wait()

    # --- one look --------------------------------------------------------------------------------

    async def run_once(self) -> NextLook:
        """Survey the queue, select the jobs that are this node's turn, claim and start them."""
        if self._reconciler.is_due and not self._store.is_spooling:  # the spool may hold completions
            await self._reconciler.run_once(self._executor.running)
        free = min(self._capacity.free, _MAX_CLAIM)
        if free <= 0:
            return AFTER_CHANGE
        if not self._clock.can_author:
            return NextLook(_RETRY_DELAY_S)
        self._presence.consumed()
        situation = await self._chooser.read_situation(self._authorship.history)
        kinds = [kind for kind in situation if self._capacity.has_free(kind)]
        if not kinds:
            await self._chooser.refresh_membership()  # now rather than when there are jobs to claim
            return AFTER_CHANGE
        survey = await self._survey(kinds, free)
        choice = self._select(survey, free)
        claimed = await self._claim_and_start(choice.take, survey.openings) if choice.take else 0
        await self._chooser.refresh_membership()
        if claimed:
            self._race_backoff.reset()
            return NOW
        if choice.take:
            return NextLook(self._race_backoff.next_delay(), is_backoff=True)
        return await self._next_look(survey, choice)

    async def _survey(self, kinds: Sequence[str], free: int) -> Survey:
        """Read the ready jobs of these kinds, as many as it takes to fill the free capacity of all nodes."""
        blocked = await self._limits.blocked_claims()
        kinds = [kind for kind in kinds if self._chooser.is_open(kind) and not blocked.is_all]
        unthrottled = [kind for kind in kinds if not self._claimer.is_throttled(kind)]
        window = min(max(free, _MIN_WINDOW) * self._chooser.count, _MAX_WINDOW)
        window += self._authorship.doubted_count  # these must not keep others from being seen
        at_ms = self._clock.now_ms
        openings = self._limits.openings(self._chooser.bindings, at_ms)
        ready, unreadable = await self._queries.claimable(
            unthrottled,
            window,
            at_ms=at_ms,
            but_of=blocked.accounts,
            policy_roots=self._capacity.policy_roots,
            openings=openings,
        )
        is_deep = len(ready) + len(unreadable) == window
        if unreadable:
            await self._jobs.quarantine(unreadable)
        doubted_s = None
        if self._authorship.doubted_count:
            left_s = {job: self._authorship.doubted_s(job.job_id, job.claim_token) for job in ready}
            ready = [job for job in ready if not left_s[job]]
            doubted_s = min(filter(None, left_s.values()), default=None)
        running = self._executor.running
        jobs = [job for job in ready if job.job_id not in running and self._claimer.is_new(job)]
        has_skipped = len(jobs) < len(ready) or bool(unreadable) or len(unthrottled) < len(kinds)
        return Survey(at_ms, kinds, jobs, is_deep, has_skipped, doubted_s, blocked, openings)

    def _select(self, survey: Survey, free: int) -> ClaimChoice:
        """Choose the jobs that are this node's turn and fit into the free capacity of their handlers."""
        total = self._capacity.total
        choice = self._chooser.choose(survey.jobs, total, free, is_deep=survey.is_deep)
        return choice._replace(take=self._capacity.within_limits(choice.take))

    async def _claim_and_start(self, chosen: Sequence[Claimable], openings: Openings) -> int:
        """Claim the chosen jobs that are still claimable and authentic, start these, and return how many."""
        placed = await self._authorship.still_claimable(chosen, self._chooser.rekeyed)
        if len(placed) < len(chosen):
            self._chooser.invalidate_membership()
        if unreadable := [each.job.id for each in placed if each.job.fault is not None]:
            await self._jobs.quarantine(unreadable)
            placed = [each for each in placed if each.job.id not in unreadable]
        jobs = [job for job in await self._authorship.genuine(placed) if self._is_allowed(job)]
        if not self._capacity.total:  # the worker was stopped meanwhile
            return 0
        count = 0
        groups: dict[tuple[int, Opening | None], list[Job]] = {}
        for job in jobs:
            opening = None if job.binding is None else openings.open.get(job.binding)
            if job.binding is None or opening is not None:  # otherwise its row has changed since the survey
                groups.setdefault((self._lease_of(job), opening), []).append(job)
        for (lease_ms, opening), group in groups.items():
            for claimed in await self._claimer.claim(group, lease_ms, opening):
                self._executor.start(claimed)
                count += 1
        return count

    def _is_allowed(self, job: Job) -> bool:
        """Return whether the verified manifest has a policy root of this worker; a survey reads any row."""
        roots = self._capacity.policy_roots
        return roots is None or allows(roots, job.core.get("policy_root"))

    def _lease_of(self, job: Job) -> int:
        handler = self._capacity.handlers.of(job.kind)
        own = None if handler is None else handler.lease_ms
        usual = own or self._chooser.rules_of(job.kind).lease_ms or DEFAULT_LEASE_MS
        return self._leases.ms_to_boundary(job) or job.lease_ms or usual

    async def _next_look(self, survey: Survey, choice: ClaimChoice) -> NextLook:
        """Return when to look again after a look that chose nothing."""
        if survey.has_skipped:
            return NextLook(THROTTLE_S)
        retry_at_ms = choice.retry_at_ms
        if not survey.is_deep:
            # Due after the time of the survey, so that no job falls between the two reads.
            due_ms = await self._queries.next_due_ms(survey.kinds, at_ms=survey.at_ms)
            moments = (retry_at_ms, due_ms, survey.blocked.retry_at_ms, survey.openings.next_ms)
            retry_at_ms = min((each for each in moments if each is not None), default=None)
        if retry_at_ms is None:
            return NextLook(survey.doubted_s)
        delay_s = max(0.0, (retry_at_ms - self._clock.now_ms) / 1_000)
        return NextLook(delay_s if survey.doubted_s is None else min(delay_s, survey.doubted_s))
