"""The claim loop: looks for claimable jobs, claims the ones that are this node's turn, and starts them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from vox_mesh.errors import MeshError, StaleIncarnation, StoreClosed
from vox_mesh.heartbeat.presence import Presence
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.queries import Claimable
from vox_mesh.jobs.worker.capacity import Capacity
from vox_mesh.jobs.worker.chooser import Chooser, ClaimChoice
from vox_mesh.jobs.worker.claim_backoff import ClaimBackoff
from vox_mesh.jobs.worker.claim_round import AFTER_CHANGE, NOW, ClaimRound, NextLook, Survey
from vox_mesh.jobs.worker.claimer import ClaimReconciler, JobClaimer
from vox_mesh.jobs.worker.executor import Executor
from vox_mesh.jobs.worker.follow_up import FollowUp
from vox_mesh.jobs.worker.leases import Leases
from vox_mesh.jobs.worker.limits import WorkerLimits
from vox_mesh.model.jobs.records import DEFAULT_LEASE_MS, Job
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_MAX_CLAIM: Final = 100
_RETRY_DELAY_S: Final = 1.0
_ERROR_BACKOFF_S: Final = (0.5, 5.0)  # the first and the longest delay after looks that raised an error
_RACE_BACKOFF_S: Final = (0.02, 1.0)  # the same after claims that other nodes have won
_BEHIND_S: Final = 0.25  # until a replica that is behind has learnt of the claims of others, without a commit
_IDLE_PAUSE_FACTOR: Final = 4  # pause after a look that claimed nothing, as a multiple of its duration
_ABSENT_PAUSE_FACTOR: Final = 19  # the same after one that found no kind of this worker
_GATHER_FACTOR: Final = 2  # wait for more free capacity after a claim, as a multiple of its duration
_MAX_PAUSE_S: Final = 0.03
_MAX_ENDING_S: Final = 0.25  # wait so long for the capacity of attempts whose results are being written


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
        executor: Executor,
        wake: asyncio.Event,
        follow_up: FollowUp,
        chance: Callable[[], float],
    ) -> None:
        self._store = store
        self._queries = jobs.queries
        self._clock = jobs.clock
        self._presence = presence
        self._capacity = capacity
        self._limits = limits
        self._leases = leases
        self._chooser = chooser
        self._round = ClaimRound(jobs, chooser, claimer, capacity.policy_roots, limits.read_plan)
        self._reconciler = reconciler
        self._executor = executor
        self._wake = wake
        self._follow_up = follow_up
        self._error_backoff = ClaimBackoff(*_ERROR_BACKOFF_S, chance)
        self._race_backoff = ClaimBackoff(*_RACE_BACKOFF_S, chance)

    async def run(self) -> None:
        """Look for jobs until the capacity is closed. Raises only what a node can't continue after."""
        while self._capacity.total:
            await self._gather_endings()
            if await self._store.caught_up():  # here, as that wait is no part of how long a look takes
                await asyncio.sleep(0)  # the commit that has arrived wakes this loop, too
            self._wake.clear()
            is_follow_up = self._follow_up.take()
            began = self._leases.now
            next_look = await self._look()
            if is_follow_up:
                self._follow_up.learn(has_found=next_look.is_now)
            took_s = self._leases.now - began
            if next_look.is_now:
                await asyncio.sleep(0)  # the claimed jobs start before the next look
                await self._gather_capacity(min(_GATHER_FACTOR * took_s, _MAX_PAUSE_S))
            elif next_look.is_backoff:
                await self._back_off(next_look.delay_s or 0.0)
            else:
                factor = _ABSENT_PAUSE_FACTOR if next_look is AFTER_CHANGE else _IDLE_PAUSE_FACTOR
                await self._wait(next_look, min(factor * took_s, _MAX_PAUSE_S))

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
            await self._wait_for_wake(left_s)

    async def _wait(self, next_look: NextLook, least_s: float) -> None:
        """Wait for the next look, at least for a moment: a busy mesh commits all the time.

        The end of an attempt shortens the moment: it may have released other jobs.
        """
        until = self._leases.now + least_s
        with suppress(TimeoutError):
            async with asyncio.timeout(next_look.delay_s):
                await self._wake.wait()
        await self._follow_up.wait(until - self._leases.now)

    async def _gather_endings(self) -> None:
        """Wait for the capacity of attempts whose results are being written, if that is most of the free one.

        The request of a claim would wait for theirs anyway, and the next claim would be a small one, too.
        """
        until = self._leases.now + _MAX_ENDING_S
        while self._executor.ending_count > self._capacity.free and (left_s := until - self._leases.now) > 0:
            await self._wait_for_wake(left_s)

    async def _gather_capacity(self, most_s: float) -> None:
        """Wait briefly for more free capacity while other nodes claim too: a small claim costs as much."""
        until = self._leases.now + most_s
        while self._chooser.count > 1 and not self._capacity.has_many_free and self._leases.now < until:
            await self._wait_for_wake(until - self._leases.now)

    async def _wait_for_wake(self, timeout_s: float) -> None:
        self._wake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
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
        if (choice := await self._chooser.glance(self._capacity.total, self._capacity.has_free)) is not None:
            return self._look_at(choice.retry_at_ms)
        kinds = [kind for kind in await self._round.read_kinds() if self._capacity.has_free(kind)]
        if not kinds:
            await self._chooser.refresh_membership()  # now rather than when there are jobs to claim
            return AFTER_CHANGE
        blocked = await self._limits.blocked_claims()
        survey = await self._round.survey(
            kinds, free, blocked, self._executor.running, self._limits.agent, self._capacity.tags
        )
        choice = self._select(survey, free)
        self._round.adapt(survey, choice, free)
        chosen = await self._still_pending(choice)
        claimed = await self._claim_and_start(chosen) if chosen else 0
        await self._chooser.refresh_membership()
        if claimed:
            self._race_backoff.reset()
            return NOW
        if chosen:
            return NextLook(self._race_backoff.next_delay(), is_backoff=True)
        if choice.take:
            return NextLook(_BEHIND_S)
        return await self._round.next_look(survey, choice)

    async def _still_pending(self, choice: ClaimChoice) -> Sequence[Claimable]:
        """Return the chosen jobs, without those of other nodes' turn that were claimed just now.

        On a busy machine, a replica learns of claims late; and a refused claim goes to all replicas.
        """
        if choice.is_others_turn and self._store.replica_status is not None:
            return await self._queries.still_pending(choice.take)
        return choice.take

    def _look_at(self, at_ms: int | None) -> NextLook:
        return AFTER_CHANGE if at_ms is None else NextLook(max(0.0, (at_ms - self._clock.now_ms) / 1_000))

    def _select(self, survey: Survey, free: int) -> ClaimChoice:
        """Choose the jobs that are this node's turn and fit into the free capacity of their handlers."""
        total = self._capacity.total
        choice = self._chooser.choose(survey.jobs, total, free, is_deep=survey.is_deep)
        return choice._replace(take=self._capacity.within_limits(choice.take))

    async def _claim_and_start(self, chosen: Sequence[Claimable]) -> int:
        """Claim the chosen jobs that are still claimable and authentic, start these, and return how many."""
        jobs = await self._round.still_genuine(chosen, self._capacity.tags)
        if not self._capacity.total:  # the worker was stopped meanwhile
            return 0
        count = 0
        async for claimed in self._round.claim(jobs, self._lease_of):
            self._executor.start(claimed)
            count += 1
        return count

    def _lease_of(self, job: Job) -> int:
        handler = self._capacity.handlers.of(job.kind)
        own = None if handler is None else handler.lease_ms
        usual = own or self._chooser.rules_of(job.kind).lease_ms or DEFAULT_LEASE_MS
        return self._leases.ms_to_boundary(job) or job.lease_ms or usual
