"""The work of agents: take jobs, renew their leases, report what was done.

The node claims on the agent's behalf, with the worker's own claimer, and signs the proof, which names the
agent. It renews nothing by itself: only the agent does. What it remembers between two calls only saves reads,
so a restart changes nothing: the claim token is what counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from vox_mesh.errors import (
    BadValue,
    MeshError,
    NotGranted,
    PhaseOverrun,
    Refused,
    StaleClaim,
    TakenElsewhere,
)
from vox_mesh.jobs.jobs import Jobs, Reference
from vox_mesh.jobs.progress import Notebook
from vox_mesh.jobs.proof.artifacts import Artifact, Artifacts
from vox_mesh.jobs.results import RESULT
from vox_mesh.jobs.work.reports import Report, ReportedOutcome, ReportedUsage, usage_of, yielded
from vox_mesh.jobs.work.requests import TakeRequests
from vox_mesh.jobs.work.taker import Taker, WaitingAgent, taking_act
from vox_mesh.jobs.work.takes import HeldTake, JobTakes, KnownTake, stale_claim
from vox_mesh.jobs.work.wanted import WantedJobs, lease_ms_of
from vox_mesh.jobs.worker.attempt_limits import AttemptLimits
from vox_mesh.jobs.worker.attempt_result import AttemptResult
from vox_mesh.jobs.worker.chooser import Chooser
from vox_mesh.jobs.worker.claimer import Claimed, JobClaimer
from vox_mesh.jobs.worker.end_recorder import EndRecorder
from vox_mesh.jobs.worker.executor import result_of_failed_start
from vox_mesh.jobs.worker.finisher import Finisher
from vox_mesh.jobs.worker.leases import Leases
from vox_mesh.jobs.worker.limits import WorkerLimits
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.durations import Duration, seconds_of
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.jobs.policy_roots import PolicyRoots
from vox_mesh.model.jobs.proof import AgentAttestation
from vox_mesh.model.jobs.records import HELD, Job, JobState
from vox_mesh.model.jobs.taken_job import TakenJob as TakenJob
from vox_mesh.model.messages.records import checked_agent
from vox_mesh.model.rhythm.costs import NOTHING
from vox_mesh.model.rhythm.tokens import TokenUsage
from vox_mesh.model.rhythm.usage import NO_USAGE, Usage
from vox_mesh.nodes.nodes import Nodes
from vox_mesh.oplog.grants.permit import Permit
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.oplog.roles import Roles
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.rhythm.rhythm import Rhythm
from vox_mesh.rhythm.token_ledger import AttemptCharge
from vox_mesh.store.acting import acting_as
from vox_mesh.store.script import Outcome
from vox_mesh.store.store import Store


class AgentWork:
    """Takes jobs for agents and reports them: `mesh.work`."""

    def __init__(
        self,
        store: Store,
        writer: OpLogWriter,
        jobs: Jobs,
        nodes: Nodes,
        roles: Roles,
        artifacts: Artifacts,
        rhythm: Rhythm,
        permits: Permits,
        *,
        policy_roots: PolicyRoots | None,
        monotonic: Callable[[], float],
        chance: Callable[[], float],
        on_agent: Callable[[str, str], None],
    ) -> None:
        """`on_agent` is called with each agent that takes jobs, and its action."""
        self._on_agent = on_agent
        self._store = store
        self._jobs = jobs
        self._clock = jobs.clock
        self._artifacts = artifacts
        self._rhythm = rhythm
        self._permits = permits
        self._monotonic = monotonic
        self._node_id = node_id = writer.identity.node_id
        self._takes = JobTakes(store, lambda: writer.identity)
        self._known: Recent[str, KnownTake] = Recent(_MAX_KNOWN)
        self._requests = TakeRequests[TakenJob](lambda taken: taken.job.job_id, _size_of)
        self._finisher = Finisher(
            store,
            jobs.transitions,
            artifacts,
            writer,
            jobs.clock,
            chance,
            EndRecorder(rhythm.budgets, rhythm.tallies),
            lambda at_ms: rhythm.context.plan.announced_stamp_at(at_ms),
        )
        self._leases = Leases(
            store,
            jobs.transitions,
            jobs.queries,
            node_id,
            monotonic,
            to_boundary=lambda until, following: rhythm.beat_locks.lease_ms(until, following),
        )
        chooser = Chooser(node_id, jobs.queries, nodes, roles, jobs.clock, monotonic)
        # A claim whose outcome is unknown is left to its lease: no other process knows of the agent.
        claimer = JobClaimer(
            store,
            jobs.transitions,
            chooser,
            lambda: None,
            jobs.clock,
            node_id,
            monotonic,
            jobs.authorship.causes_of,
            lambda: rhythm.budgets.own_agent,
        )
        self._taker = Taker(
            store,
            jobs,
            chooser,
            claimer,
            self._leases,
            policy_roots,
            rhythm.read_plan,
            self._give_back,
            permits,
            chance,
        )

    async def close(self) -> None:
        """Answer the agents that still wait, and write what was reported."""
        await self._taker.close()
        await self._finisher.close()

    # --- taking ----------------------------------------------------------------------------------

    async def take(
        self,
        agent: str,
        kinds: Sequence[str] = ("*",),
        *,
        count: int = 1,
        wait: Duration = 0.0,
        lease: Duration | None = None,
        capacity: int | None = None,
        tags: Iterable[str] = (),
        request_id: str | None = None,
    ) -> list[TakenJob]:
        """Take up to `count` ready jobs of these kinds, and wait for one if there is none.

        `capacity`: how many jobs the agent wants to hold at most in total, through all nodes.
        `tags`: the tags that the agent has; a job with others is not taken.
        `lease` counts unless the job has a lease of its own. Commands must be named: they are of kind `exec`.
        An agent that repeats a `request_id` gets the jobs again that it was given under it, and no others.
        """
        attested = AgentAttestation(checked_agent(agent))
        wanted = WantedJobs.of(kinds, count, lease, capacity, tags)
        wait_s = seconds_of("wait", wait)
        await self._permits.refuse_without_any(agent, lambda: [taking_act(each) for each in wanted.patterns])
        self._on_agent(agent, "take")
        if request_id is None:
            return await self._take(attested, wanted, wait_s)
        return await self._requests.answer((agent, request_id), lambda: self._take(attested, wanted, wait_s))

    async def _take(self, attested: AgentAttestation, wanted: WantedJobs, wait_s: float) -> list[TakenJob]:
        until, limits = self._monotonic() + wait_s, self._limits_of(attested)
        while True:
            request = WaitingAgent(attested, wanted, limits)
            claimed = await self._taker.take(request, max(0.0, until - self._monotonic()))
            taken = await self._begin_all(request.attested, limits, claimed)
            if taken or not claimed:
                return taken

    async def _begin_all(
        self, attested: AgentAttestation, limits: WorkerLimits, claimed: Sequence[Claimed]
    ) -> list[TakenJob]:
        """Return the claimed jobs whose attempts can begin."""
        if len(claimed) == 1:
            begun = [await self._begin(attested, limits, claimed[0])]
        else:
            begun = await asyncio.gather(*(self._begin(attested, limits, each) for each in claimed))
        return [each for each in begun if each is not None]

    async def _begin(
        self, attested: AgentAttestation, agent_limits: WorkerLimits, claimed: Claimed
    ) -> TakenJob | None:
        """Return a claimed job with all that the agent needs, or `None` if its attempt can't begin."""
        job = claimed.job
        try:
            core = await self._jobs.predecessor_results.bind(job)
            is_repeated = job.attempts > 1
            checkpoint = await self._jobs.checkpoints.resumed(job) if is_repeated else None
            answered = await self._jobs.questions.answer_to(job) if is_repeated else None
            answer = None if answered is None else answered["answer"]
            limits = await agent_limits.of(job, core, self._notebook(job))
            why = None if limits is None else await limits.begin()
        except Exception as error:
            await self._finisher.finish(result_of_failed_start(job, error, self._jobs.authorship))
            return None
        if why is not None:
            now_ms = self._clock.now_ms
            result = AttemptResult(job, JobState.FAILED, why, finished_ms=now_ms, may_retry=False)
            await self._finisher.finish(result._replace(agent=attested))
            return None
        take = HeldTake(job, attested, claimed.lease_ms)
        self._known[job.job_id] = KnownTake(take, has_limits=limits is not None)
        until_ms = (job.started_ms or 0) + claimed.lease_ms
        return TakenJob(job, attested.agent, claimed.lease_ms, until_ms, core, checkpoint, answer)

    async def return_unreceived(self, agent: str, jobs: Mapping[str, int]) -> None:
        """Return jobs, by id and claim token, whose agent has gone before it heard of them."""
        self._requests.forget(agent, jobs)
        for job_id, claim_token in jobs.items():
            with suppress(MeshError):  # if this fails, the lease expires by itself
                await self.report(job_id, claim_token, yielded(_GONE, delay=0))

    async def _give_back(self, attested: AgentAttestation, claimed: Sequence[Claimed]) -> None:
        await asyncio.gather(*(self._finisher.finish(_unreceived(each.job, attested)) for each in claimed))

    async def is_held_by(self, agent: str, job: Job) -> bool:
        """Return whether an agent has taken a job last."""
        _, take = await self._takes.find(job.job_id)
        return take is not None and take.attested.agent == agent

    async def holds_successor(self, agent: str, job: Job) -> bool:
        """Return whether an agent holds a job that waited for this one."""
        return await self._takes.has_successor(agent, job.job_id)

    # --- while it is held ------------------------------------------------------------------------

    async def renew(
        self, reference: Reference, claim_token: int, *, lease: Duration | None = None
    ) -> TakenJob:
        """Renew the lease of a taken job. Raises `StaleClaim` if it is over, `NotGranted` after a revocation.

        If the attempt has exceeded a limit, the job ends, and the error says so.
        """
        take = await self._held(reference, claim_token)
        lease_ms = take.lease_ms if lease is None else lease_ms_of(lease)
        limits = await self._resumed_limits(take)
        if (exceeded := await self._exceeded(take, limits, NO_USAGE)) is not None:
            result = AttemptResult(take.job, JobState.FAILED, exceeded.line, finished_ms=self._clock.now_ms)
            await self._write(take, result, limits)
            raise exceeded
        lease_ms = self._leases.ms_to_boundary(take.job, following=True) or lease_ms
        item = {"job_id": take.job.job_id, "claim_token": claim_token}
        sent_ms = self._clock.now_ms
        keep_start = self._jobs.transitions.keep_start(take.job)

        def renew(permit: Permit) -> Awaitable[Outcome]:
            guards = permit._replace(limits=None).guards  # it was counted when it was taken
            with acting_as(permit.agent):
                script = self._jobs.transitions.renew([item], lease_ms, keep_start, *guards)
            return self._store.write(script)

        try:
            await self._permits.attempt(
                lambda: [taking_act(take.job.kind)], renew, agent=take.attested.agent, is_logged=False
            )
        except NotGranted:
            raise
        except Refused:
            raise stale_claim(take.job, claim_token) from None
        return TakenJob(take.job, take.attested.agent, lease_ms, sent_ms + lease_ms, take.job.core)

    async def progress(
        self,
        reference: Reference,
        claim_token: int,
        fraction: float | None = None,
        message: str | None = None,
        *,
        usage: ReportedUsage | None = None,
    ) -> None:
        """Report the completed fraction, from 0 to 1, a message, and tokens that were used since last time.

        The tokens are charged at once, also if the attempt is lost later.
        """
        if fraction is not None and not 0 <= fraction <= 1:
            raise BadValue(f"progress must be between 0 and 1, got {fraction}")
        used = usage_of(usage)
        if used.resources is not NOTHING:
            raise BadValue("progress must report tokens only", hint="report other usage at the end")
        take = await self._held(reference, claim_token)
        if used.tokens:
            await self._charge(take, used.tokens)
        notebook = self._notebook(take.job)
        notebook.progress(fraction, message)
        await notebook.close()

    async def _charge(self, take: HeldTake, tokens: TokenUsage) -> None:
        charge = AttemptCharge.of(take.job, take.attested.agent, tokens, self._clock.now_ms)
        script = self._rhythm.tokens.charge_script(charge, self._takes.guard(take.job), is_held=True)
        await self._store.write(script)

    async def checkpoint(self, reference: Reference, claim_token: int, value: Any) -> None:
        """Save a JSON value from which another attempt may resume."""
        await self._notebook((await self._held(reference, claim_token)).job).checkpoint(value)

    async def log(self, reference: Reference, claim_token: int, text: str) -> None:
        """Add text to the job's log."""
        job = (await self._held(reference, claim_token)).job
        notebook = self._notebook(job, await self._takes.logged_chars(job))
        notebook.log("log", text if text.endswith("\n") else f"{text}\n")
        await notebook.close()

    async def keep(
        self,
        reference: Reference,
        claim_token: int,
        name: str,
        body: bytes,
        type: str = "application/octet-stream",  # noqa: A002 - as in an output
    ) -> Artifact:
        """Store an artifact, which becomes part of the proof; one of the same name is replaced."""
        take = await self._held(reference, claim_token)
        return await self._add(take, await self._artifacts.keep(body, name=name, type=type))

    async def keep_file(
        self,
        reference: Reference,
        claim_token: int,
        name: str,
        path: Path,
        type: str = "application/octet-stream",  # noqa: A002
    ) -> Artifact:
        """Store a file as an artifact."""
        take = await self._held(reference, claim_token)
        return await self._add(take, await self._artifacts.keep_file(path, name=name, type=type))

    async def _add(self, take: HeldTake, artifact: Artifact) -> Artifact:
        self._known.pop(take.job.job_id, None)  # it knows of no artifacts
        record = self._artifacts.rows([artifact])
        assert record is not None
        await self._takes.keep(take, artifact, record)
        return artifact

    # --- reporting -------------------------------------------------------------------------------

    async def report(self, reference: Reference, claim_token: int, report: Report) -> Job:
        """End the attempt as reported, and return the job.

        Raises `StaleClaim` if the claim is over. A report that was written before is not written again.
        """
        known = self._known_take(reference, claim_token)
        try:
            take = await self._held(reference, claim_token) if known is None else known.take
            return await self._report(take, report, has_limits=known is None or known.has_limits)
        except StaleClaim:
            job, _ = await self._takes.find(await self._job_id(reference))
            if report.is_written(job, claim_token):
                return job
            raise

    async def _report(self, take: HeldTake, report: Report, *, has_limits: bool) -> Job:
        result = AttemptResult(
            take.job,
            _ENDS.get(report.outcome, JobState.PENDING),
            report.reason,
            exit_code=report.exit_code,
            artifacts=[*take.artifacts, *await self._result_of(take, report)],
            finished_ms=self._clock.now_ms,
            may_retry=report.may_retry,
            delay_ms=_delay_of(take.job, report),
            question=report.question,
            usage=report.usage.resources,
            tokens=report.usage.tokens,
        )
        limits = await self._resumed_limits(take) if has_limits else None
        exceeded = await self._exceeded(take, limits, report.usage)
        if exceeded is not None and report.outcome in _ENDS:
            result = result._replace(state=JobState.FAILED, reason=exceeded.line)
        written = await self._write(take, result, limits)
        self._known.pop(take.job.job_id, None)
        if report.question is not None:
            await self._jobs.questions.announce(take.job.job_id)
        if written.is_requeued or self._store.is_spooling:
            return await self._jobs.find(take.job.job_id)
        return written.ended_job()

    async def _result_of(self, take: HeldTake, report: Report) -> list[Artifact]:
        if report.result is None:
            return []
        if any(each.name == RESULT for each in take.artifacts):
            raise BadValue(f"the result is given twice: an artifact {RESULT!r} was kept", hint="omit one")
        body = canonical(report.result).encode()
        return [await self._artifacts.keep(body, name=RESULT, type="application/json")]

    async def _write(
        self, take: HeldTake, result: AttemptResult, limits: AttemptLimits | None
    ) -> AttemptResult:
        if limits is not None:
            result = await limits.end(result)
        written = await self._finisher.finish(result._replace(agent=take.attested))
        if written is None:
            if limits is not None and result.end is not None:
                await limits.record_refused(result.end)
            self._known.pop(take.job.job_id, None)
            await self._held(take.job, take.job.claim_token)  # says why
            raise stale_claim(take.job, take.job.claim_token)
        return written

    # --- the claim -------------------------------------------------------------------------------

    async def _job_id(self, reference: Reference) -> str:
        if isinstance(reference, str) and len(reference) != _ID_LENGTH:
            return (await self._jobs.find(reference)).job_id
        return reference if isinstance(reference, str) else reference.job_id

    async def _held(self, reference: Reference, claim_token: int) -> HeldTake:
        """Return a job that an agent holds through this node under this token. Raises if it does not."""
        job, take = await self._takes.find(await self._job_id(reference))
        if job.state not in HELD or job.claim_token != claim_token or take is None:
            raise stale_claim(job, claim_token)
        if job.claimer != self._node_id:
            raise TakenElsewhere(
                f"job {job.job_id} was taken through node {job.claimer}, not through {self._node_id}",
                node_id=str(job.claimer),
            )
        take.refuse_others()
        return take

    def _known_take(self, reference: Reference, claim_token: int) -> KnownTake | None:
        """Return a take of this process, if it is remembered; whether it is over, only the database knows."""
        job_id = reference if isinstance(reference, str) else reference.job_id
        known = self._known.get(job_id)
        if known is None or known.take.job.claim_token != claim_token:
            return None
        known.take.refuse_others()
        return known

    def _notebook(self, job: Job, logged: int = 0) -> Notebook:
        return Notebook(self._store, job, self._jobs.checkpoints, logged)

    def _limits_of(self, attested: AgentAttestation) -> WorkerLimits:
        return WorkerLimits(self._rhythm.parts, self._monotonic, attested.agent)

    async def _resumed_limits(self, take: HeldTake) -> AttemptLimits | None:
        worker_limits = self._limits_of(take.attested)
        begun = await worker_limits.begun(take.job)
        if begun is None:
            return None
        return await worker_limits.of(take.job, take.job.core, self._notebook(take.job), begun=begun)

    async def _exceeded(self, take: HeldTake, limits: AttemptLimits | None, used: Usage) -> MeshError | None:
        """Return the limit that the attempt has exceeded, or `None`."""
        timeout_s, now_ms = take.job.core.get("timeout"), self._clock.now_ms
        if timeout_s and now_ms - (take.job.started_ms or now_ms) > timeout_s * 1_000:
            return PhaseOverrun(f"it took longer than {timeout_s:g} s", phase="work")
        return None if limits is None else await limits.exceeded(used)


_ID_LENGTH: Final = 64
_MAX_KNOWN: Final = 4_096
_GONE: Final = "its agent had gone"
_ENDS: Final = {
    ReportedOutcome.SUCCEEDED: JobState.SUCCEEDED,
    ReportedOutcome.FAILED: JobState.FAILED,
}


def _size_of(taken: TakenJob) -> int:
    """Return about how many bytes a taken job has."""
    parts = (taken.core, taken.checkpoint, taken.answer)
    return len(taken.job.manifest) + len(taken.job.output_artifacts) + len(repr(parts))


def _unreceived(job: Job, attested: AgentAttestation) -> AttemptResult:
    return AttemptResult(job, JobState.PENDING, _GONE, delay_ms=0, agent=attested)


def _delay_of(job: Job, report: Report) -> int | None:
    if report.outcome in _ENDS:
        return None
    return job.backoff_ms if report.delay_ms is None else report.delay_ms
