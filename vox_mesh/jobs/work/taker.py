"""The taker: claims jobs on behalf of the agents that wait for one.

All waiting agents of a process share one look at the queue, so that many of them cost hardly more than one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from vox_mesh.errors import AWAY, MeshError, StaleIncarnation, StoreClosed
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.queries import Claimable
from vox_mesh.jobs.work.takes import held_count
from vox_mesh.jobs.work.wanted import WantedJobs
from vox_mesh.jobs.worker.chooser import Chooser, ClaimChoice
from vox_mesh.jobs.worker.claim_backoff import ClaimBackoff
from vox_mesh.jobs.worker.claim_round import NOW, ClaimRound, NextLook, ReadPlan
from vox_mesh.jobs.worker.claimer import Claimed, JobClaimer
from vox_mesh.jobs.worker.leases import Leases
from vox_mesh.jobs.worker.limits import ClaimBlock, WorkerLimits
from vox_mesh.model.jobs.policy_roots import PolicyRoots
from vox_mesh.model.jobs.proof import AgentAttestation
from vox_mesh.model.jobs.records import DEFAULT_LEASE_MS, NO_TAGS, Job, Tags, covers
from vox_mesh.model.jobs.rendezvous import MAX_PATIENCE_MS
from vox_mesh.observability.log_context import detached_context
from vox_mesh.oplog.grants.permit import Permit
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.store.acting import acting_as
from vox_mesh.store.engines.thread import to_the_end
from vox_mesh.store.store import Store

if TYPE_CHECKING:
    from vox_mesh.model.grants.capability import Act

_TURN_S: Final = MAX_PATIENCE_MS / 1_000
"""How long it may take until it is this node's turn: also an agent that does not wait gets that long."""

_ERROR_BACKOFF_S: Final = (0.1, 2.0)
_RACE_BACKOFF_S: Final = (0.02, 0.5)
_NO_CHOICE: Final = ClaimChoice([], None)


GiveBack = Callable[[AgentAttestation, Sequence[Claimed]], Awaitable[None]]
"""Returns jobs to the queue that were claimed for an agent which has gone."""


class WaitingAgent:
    """An agent that waits for jobs of some kinds."""

    def __init__(self, attested: AgentAttestation, wanted: WantedJobs, limits: WorkerLimits) -> None:
        self.attested = attested
        self.wanted = wanted
        self.limits = limits
        self.room = wanted.at_once
        """How many jobs it may be given now."""
        self.is_patient = True
        """Whether it waits for jobs that are not there yet."""
        self.claimed: asyncio.Future[list[Claimed]] = asyncio.get_running_loop().create_future()
        self.granted: Collection[str] | None = None
        """The kinds that are there now and that its grants allow; `None`: it needs no grant."""

    def wants(self, kind: str) -> bool:
        """Return whether the agent takes jobs of a kind."""
        return covers(kind, self.wanted.patterns) and (self.granted is None or kind in self.granted)

    def fail(self, error: Exception) -> None:
        """Report an error to the agent, unless it has gone."""
        if not self.claimed.done():
            self.claimed.set_exception(error)

    def settle(self, claimed: list[Claimed]) -> None:
        """Answer the agent, unless it has gone."""
        if not self.claimed.done():
            self.claimed.set_result(claimed)


class Taker:
    """Serves the waiting agents of one process while there are any."""

    def __init__(
        self,
        store: Store,
        jobs: Jobs,
        chooser: Chooser,
        claimer: JobClaimer,
        leases: Leases,
        policy_roots: PolicyRoots | None,
        read_plan: ReadPlan,
        give_back: GiveBack,
        permits: Permits,
        chance: Callable[[], float],
    ) -> None:
        self._permits = permits
        self._give_back = give_back
        self._store = store
        self._changes = store.but_heartbeats
        self._clock = jobs.clock
        self._chooser = chooser
        self._round = ClaimRound(jobs, chooser, claimer, policy_roots, read_plan)
        self._leases = leases
        self._error_backoff = ClaimBackoff(*_ERROR_BACKOFF_S, chance)
        self._race_backoff = ClaimBackoff(*_RACE_BACKOFF_S, chance)
        self._waiting: list[WaitingAgent] = []
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def take(self, request: WaitingAgent, wait_s: float) -> list[Claimed]:
        """Return the jobs that were claimed for the agent, none if there were none within `wait_s`."""
        request.is_patient = wait_s > 0
        self._waiting.append(request)
        self._arrived.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name="vox-mesh-taker", context=detached_context()
            )
        try:
            async with asyncio.timeout(wait_s if wait_s > 0 else None):
                return await request.claimed
        except TimeoutError:  # jobs may have been claimed at the same moment
            return [] if request.claimed.cancelled() else request.claimed.result()
        except asyncio.CancelledError:
            await to_the_end(asyncio.create_task(self._abandon(request), name="vox-mesh-take-back"))
            raise
        finally:
            if request in self._waiting:
                self._waiting.remove(request)
            request.claimed.cancel()  # a claim in flight is given back

    async def _abandon(self, request: WaitingAgent) -> None:
        """Give back what was claimed for an agent that has gone."""
        if request.claimed.done() and not request.claimed.cancelled() and not request.claimed.exception():
            await self._give_back(request.attested, request.claimed.result())

    async def close(self) -> None:
        """Stop looking; agents that still wait get nothing."""
        for request in self._waiting:
            request.settle([])
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- looking ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        while self._waiting:
            self._arrived.clear()
            seen, asked = self._changes.change_count, list(self._waiting)
            try:
                next_look = await self._look(asked)
                self._error_backoff.reset()
            except Exception as error:
                self._fail(asked, error)
                next_look = NextLook(self._error_backoff.next_delay(), is_backoff=True)
            if self._waiting and not next_look.is_now:
                await self._wait(next_look, seen)

    def _fail(self, asked: Sequence[WaitingAgent], error: Exception) -> None:
        """Report an error to the agents that can't wait, and to all of these if waiting is useless."""
        if not isinstance(error, MeshError):
            self._store.faults.note("taker", error)
        is_final = not isinstance(error, AWAY) or isinstance(error, StaleIncarnation | StoreClosed)
        for request in asked:
            if (is_final or not request.is_patient) and not request.claimed.done():
                self._waiting.remove(request)
                request.claimed.set_exception(error)

    async def _wait(self, next_look: NextLook, seen: int) -> None:
        """Wait until there may be a job: after a commit, when one becomes due, or for another agent."""
        waits = [] if next_look.is_backoff else [self._changes.changed(seen), self._arrived.wait()]
        tasks = [asyncio.ensure_future(each) for each in waits]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=next_look.delay_s, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(next_look.delay_s or 0.0)
        finally:
            for task in tasks:
                task.cancel()

    async def _look(self, asked: Sequence[WaitingAgent]) -> NextLook:
        """Survey the queue once, claim jobs for the agents, and return when to look again."""
        self._clock.refuse_if_off()
        present = await self._round.read_kinds()
        for request in asked if self._permits.are_in_use else ():
            agent = request.attested.agent
            request.granted = await self._permits.granted(agent, present, taking_act)
        for request in asked:
            if request.wanted.capacity is not None:
                held = await held_count(self._store, request.attested.agent)
                request.room = min(request.wanted.at_once, request.wanted.capacity - held)
        able = [
            request
            for request in asked
            if request.room > 0
            and self._chooser.can_spend(request.attested.agent)
            and not (await request.limits.blocked_claims()).is_all
        ]
        looks = [await self._look_for(group, present) for group in self._groups(able)]
        self._dismiss([request for request in asked if request not in able], _NO_CHOICE)
        return _soonest(looks)

    def _groups(self, able: Sequence[WaitingAgent]) -> list[list[WaitingAgent]]:
        """Return the agents by their tags; one whose own budgets decide what it may take is on its own."""
        groups: dict[tuple[str | None, Tags], list[WaitingAgent]] = {}
        for request in able:
            agent = request.attested.agent
            own = agent if self._chooser.has_budget(agent) else None
            groups.setdefault((own, request.wanted.tags), []).append(request)
        return list(groups.values()) or [[]]

    async def _look_for(self, able: Sequence[WaitingAgent], present: Sequence[str]) -> NextLook:
        """Survey the queue for agents with the same budgets and tags, and claim jobs for them."""
        kinds = [kind for kind in present if any(request.wants(kind) for request in able)]
        blocked = (await able[0].limits.blocked_claims()) if able else ClaimBlock()
        wanted = sum(request.room for request in able)
        agent = able[0].attested.agent if able else None
        tags = able[0].wanted.tags if able else NO_TAGS
        survey = await self._round.survey(kinds, wanted, blocked, (), agent, tags, len(able))
        choice = self._chooser.choose(survey.jobs, max(1, wanted), len(survey.jobs), is_deep=survey.is_deep)
        self._round.adapt(survey, choice, wanted)
        shares = _share_out(choice.take, able)
        claimed = await self._claim(shares, tags) if shares else 0
        await self._chooser.refresh_membership()
        if claimed:
            self._race_backoff.reset()
        elif shares:
            return NextLook(self._race_backoff.next_delay(), is_backoff=True)
        self._dismiss([request for request in able if request not in shares], choice)
        return NOW if claimed else await self._round.next_look(survey, choice)

    def _dismiss(self, asked: Sequence[WaitingAgent], choice: ClaimChoice) -> None:
        """Answer the agents that do not wait, unless it is this node's turn in a moment."""
        turn_ms = choice.retry_at_ms
        if turn_ms is not None and turn_ms <= self._clock.now_ms + _TURN_S * 1_000:
            return
        for request in asked:
            if not request.is_patient and request in self._waiting:
                self._waiting.remove(request)
                request.settle([])

    # --- claiming --------------------------------------------------------------------------------

    async def _claim(self, shares: dict[WaitingAgent, list[Claimable]], tags: Tags) -> int:
        """Claim for each agent its share, and answer the ones that got something. Return how many jobs."""
        chosen = [job for share in shares.values() for job in share]
        genuine = {job.job_id: job for job in await self._round.still_genuine(chosen, tags)}
        claims = [
            self._claim_for(request, [genuine[each.job_id] for each in share if each.job_id in genuine])
            for request, share in shares.items()
        ]
        return sum(await asyncio.gather(*claims)) if len(claims) > 1 else await claims[0]

    async def _claim_for(self, request: WaitingAgent, jobs: Sequence[Job]) -> int:
        """Claim jobs for an agent, and answer it; an error concerns no other agent. Return how many."""
        if not jobs or request not in self._waiting:  # it has gone meanwhile
            return 0
        if request.granted is not None:  # each kind may have a grant of its own
            jobs = [job for job in jobs if job.kind == jobs[0].kind]
        agent, claim = request.attested.agent, partial(self._claim_by, request, jobs)
        try:
            claimed = await self._permits.attempt(
                lambda: [taking_act(kind) for kind in {job.kind for job in jobs}],
                claim,
                agent=agent,
                is_logged=False,
            )
        except Exception as error:
            self._fail([request], error)
            return 0
        if claimed and request in self._waiting and not request.claimed.done():
            self._waiting.remove(request)
            request.settle(claimed)
        elif claimed:
            await self._give_back(request.attested, claimed)
        return len(claimed)

    async def _claim_by(self, request: WaitingAgent, jobs: Sequence[Job], permit: Permit) -> list[Claimed]:
        """Claim jobs by a permit; by a grant with limits, one at a time."""
        request.attested = request.attested._replace(grant=permit.grant_id)
        permit = permit._replace(capacity=request.wanted.capacity)
        jobs, lease_of = jobs if permit.limits is None else jobs[:1], partial(self._lease_of, request)
        with acting_as(permit.agent):
            return [each async for each in self._round.claim(jobs, lease_of, permit)]

    def _lease_of(self, request: WaitingAgent, job: Job) -> int:
        usual = request.wanted.lease_ms or self._chooser.rules_of(job.kind).lease_ms or DEFAULT_LEASE_MS
        return self._leases.ms_to_boundary(job) or job.lease_ms or usual


def _soonest(looks: Sequence[NextLook]) -> NextLook:
    """Return when to look again for all; a change counts unless all must wait."""
    delays = [each.delay_s for each in looks if each.delay_s is not None]
    return NextLook(min(delays, default=None), is_backoff=all(each.is_backoff for each in looks))


def _share_out(
    jobs: Sequence[Claimable], asked: Sequence[WaitingAgent]
) -> dict[WaitingAgent, list[Claimable]]:
    """Give each job to the agent that has waited longest among the ones that want it and have room."""
    shares: dict[WaitingAgent, list[Claimable]] = {}
    for job in jobs:
        for request in asked:
            if len(shares.get(request, ())) < request.room and request.wants(job.kind):
                shares.setdefault(request, []).append(job)
                break
    return shares


def taking_act(kind: str) -> Act:
    """Return the act of taking jobs of a kind."""
    from vox_mesh.model.grants.capability import TAKE, Act  # imported late: few agents need grants

    return Act(TAKE, kind)
