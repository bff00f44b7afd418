"""One round of claiming: survey the ready jobs, choose the ones that are this node's turn, and claim them.

The worker claims for its handlers, and the work API for agents; both go through here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Final, NamedTuple

from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.queries import Claimable
from vox_mesh.jobs.worker.chooser import Chooser, ClaimChoice
from vox_mesh.jobs.worker.claimer import THROTTLE_S, Claimed, JobClaimer
from vox_mesh.jobs.worker.limits import ClaimBlock
from vox_mesh.model.jobs.policy_roots import PolicyRoots, allows
from vox_mesh.model.jobs.records import NO_TAGS, Job, Tags
from vox_mesh.model.rhythm.bindings import NO_BINDINGS, Opening, Openings
from vox_mesh.model.rhythm.openings import openings_at
from vox_mesh.model.rhythm.plan import Plan
from vox_mesh.oplog.grants.permit import Permit

ReadPlan = Callable[[], Awaitable[Plan]]
"""Returns the tempos; it is called only if jobs are bound to the rhythm."""

_MIN_WINDOW: Final = 16
_MIN_LONE_WINDOW: Final = 4  # if every job is the turn of the only claimant
_MAX_WINDOW: Final = 512  # ready jobs read per look
_MAX_REACH: Final = 8


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


class ClaimRound:
    """Surveys, chooses and claims jobs for one claimant of a node."""

    def __init__(
        self,
        jobs: Jobs,
        chooser: Chooser,
        claimer: JobClaimer,
        policy_roots: PolicyRoots | None,
        read_plan: ReadPlan,
    ) -> None:
        self._jobs = jobs
        self._queries = jobs.queries
        self._clock = jobs.clock
        self._authorship = jobs.authorship
        self._chooser = chooser
        self._claimer = claimer
        self._policy_roots = policy_roots
        self._read_plan = read_plan
        self._reach = 1  # by how much windows are wider than if all nodes claimed equally fast

    async def read_kinds(self) -> list[str]:
        """Read the current situation and return the kinds that have unfinished jobs."""
        return await self._chooser.read_situation(self._authorship.history)

    async def survey(
        self,
        kinds: Sequence[str],
        free: int,
        blocked: ClaimBlock,
        running: Collection[str],
        agent: str | None = None,
        tags: Tags = NO_TAGS,
        claimants: int = 1,
    ) -> Survey:
        """Read the ready jobs of these kinds, as many as it takes to fill the free capacity of all nodes.

        `agent` is charged for all of them, if there is only one. Jobs with tags that are not in `tags` are
        left out. `claimants`: how many agents of this node want jobs, each of its own kinds.
        """
        kinds = [kind for kind in kinds if self._chooser.is_open(kind) and not blocked.is_all]
        unthrottled = [kind for kind in kinds if not self._claimer.is_throttled(kind)]
        least = _MIN_LONE_WINDOW if self._chooser.count == claimants == 1 else _MIN_WINDOW
        window = min(max(free, least) * self._chooser.count * self._reach, _MAX_WINDOW)
        window += self._authorship.doubted_count  # these must not keep others from being seen
        at_ms = self._clock.now_ms
        openings = await self._openings(self._chooser.bindings, at_ms)
        ready, unreadable = await self._queries.claimable(
            unthrottled,
            window,
            at_ms=at_ms,
            but_of=blocked.accounts,
            policy_roots=self._policy_roots,
            openings=openings,
            spend_left=self._chooser.spend_left(agent),
            tags=tags if self._chooser.has_tagged else None,
        )
        is_deep = len(ready) + len(unreadable) == window
        if unreadable:
            await self._jobs.quarantine(unreadable)
        doubted_s = None
        if self._authorship.doubted_count:
            left_s = {job: self._authorship.doubted_s(job.job_id, job.claim_token) for job in ready}
            ready = [job for job in ready if not left_s[job]]
            doubted_s = min(filter(None, left_s.values()), default=None)
        jobs = [job for job in ready if job.job_id not in running and self._claimer.is_new(job)]
        has_skipped = len(jobs) < len(ready) or bool(unreadable) or len(unthrottled) < len(kinds)
        return Survey(at_ms, kinds, jobs, is_deep, has_skipped, doubted_s, blocked, openings)

    def adapt(self, survey: Survey, choice: ClaimChoice, free: int) -> None:
        """Read more jobs in the next survey if this one had too few of this node's turn, or fewer again.

        What the other nodes have not claimed yet stays at the front of the queue.
        """
        if survey.is_deep and choice.own_count < free:
            self._reach = min(2 * self._reach, _MAX_REACH)
        elif choice.own_count > 2 * free or not survey.is_deep:
            self._reach = max(1, self._reach // 2)

    async def _openings(self, bindings: Sequence[str], at_ms: int) -> Openings:
        """Return which bindings to the rhythm are open at a time."""
        return openings_at(await self._read_plan(), bindings, at_ms) if bindings else NO_BINDINGS

    async def still_genuine(self, chosen: Sequence[Claimable], tags: Tags = NO_TAGS) -> list[Job]:
        """Return the chosen jobs that are still claimable, authentic and allowed to a claimant with tags."""
        placed = await self._authorship.still_claimable(chosen, self._chooser.rekeyed)
        if len(placed) < len(chosen):
            self._chooser.invalidate_membership()
        if unreadable := [each.job.id for each in placed if each.job.fault is not None]:
            await self._jobs.quarantine(unreadable)
            placed = [each for each in placed if each.job.id not in unreadable]
        return [job for job in await self._authorship.genuine(placed) if self._is_allowed(job, tags)]

    async def claim(
        self, jobs: Sequence[Job], lease_of: Callable[[Job], int], permit: Permit | None = None
    ) -> AsyncIterator[Claimed]:
        """Claim and start jobs, on behalf of an agent if one is given, and yield the claimed ones."""
        bindings = list({job.binding for job in jobs if job.binding is not None})
        openings = await self._openings(bindings, self._clock.now_ms)
        groups: dict[tuple[int, Opening | None], list[Job]] = {}
        for job in jobs:
            opening = None if job.binding is None else openings.open.get(job.binding)
            if job.binding is None or opening is not None:  # otherwise it has closed since the survey
                groups.setdefault((lease_of(job), opening), []).append(job)
        for (lease_ms, opening), group in groups.items():
            for claimed in await self._claimer.claim(group, lease_ms, permit, opening):
                yield claimed

    def _is_allowed(self, job: Job, tags: Tags) -> bool:
        """Return whether the verified manifest has an allowed policy root and tags: surveys read any row."""
        roots = self._policy_roots
        is_allowed = roots is None or allows(roots, job.core.get("policy_root"))
        return is_allowed and tags >= job.tags

    async def next_look(self, survey: Survey, choice: ClaimChoice) -> NextLook:
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
