"""Views of jobs, their proofs, kinds, crons, rules and workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from vox_mesh.errors import NotKnown
from vox_mesh.jobs.jobs import Scheduled
from vox_mesh.jobs.progress import Note, Piece
from vox_mesh.jobs.proof.archived import ArchivedJobLog, ArchivedJobs
from vox_mesh.jobs.proof.job_log import DatabaseJobLog, JobLog
from vox_mesh.jobs.proof.pruned import PrunedJob, PrunedJobs
from vox_mesh.jobs.proof.verify import Verifier
from vox_mesh.jobs.queries import KindRules, Predecessor, Situation
from vox_mesh.jobs.rebuild import Difference, Rebuild
from vox_mesh.jobs.scheduling.crons import CronJob
from vox_mesh.jobs.scheduling.rules import Rule
from vox_mesh.jobs.spooled import SpooledJob
from vox_mesh.model.base.json_text import shown
from vox_mesh.model.jobs.policy_roots import refusal
from vox_mesh.model.jobs.proof import trailers
from vox_mesh.model.jobs.records import Job, JobState, covers, matches
from vox_mesh.model.jobs.replay import ReplayFinding
from vox_mesh.model.locks.records import iso_of
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.nodes.census import count_suspended
from vox_mesh.nodes.nodes import Node
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.slices import in_slices
from vox_mesh.store.targets.target import FileTarget
from vox_mesh.views.nodes import kinds_of, policy_roots_of
from vox_mesh.views.record_view import RecordView
from vox_mesh.views.rhythm import stamp_of

MAX_SHOWN_LINKS: Final = 1_000
"""How many predecessors and successors the details of a job list."""

_GONE: Final = (NodeState.DEAD, NodeState.LEFT)


@dataclass(frozen=True)
class JobView(RecordView, record=Job, without=("id", "seed")):
    """A job by column; its manifest and its outputs are the values themselves."""

    output_artifacts: list[dict[str, Any]]
    manifest: dict[str, Any]

    @classmethod
    def of(cls, job: Job) -> JobView:
        """Return the view of a job."""
        return JobView.from_record(job, **_parsed(job))


def _parsed(job: Job) -> dict[str, Any]:
    outputs = shown(job.output_artifacts)
    return {
        "manifest": shown(job.manifest),
        "output_artifacts": outputs if isinstance(outputs, list) else [outputs],
    }


@dataclass(frozen=True)
class PredecessorView:
    """A condition of a job; `job_id` is the awaited job or op."""

    job_id: str
    awaited: str
    state: str
    kind: str

    @classmethod
    def of(cls, edge: Predecessor) -> PredecessorView:
        """Return the view of a predecessor."""
        return cls(edge.predecessor, edge.awaited, edge.state, edge.kind)


@dataclass(frozen=True)
class WholeJobView(JobView):
    """All that is known of a job: also what it waits for, what waits for it, and what it said last.

    At most `MAX_SHOWN_LINKS` predecessors and successors are in it.
    `held_back` says why no worker of its kind claims it, if its policy root is not allowed.
    Each of its outputs has the time at which it was kept, `hlc`, and the bar and the beat of that.
    """

    predecessors: list[PredecessorView]
    successors: list[str]
    progress: float | None
    message: str | None
    checkpoint: Any
    noted_ms: int | None
    held_back: str | None = None

    @classmethod
    def whole(
        cls, job: Job, predecessors: Sequence[Predecessor], successors: Sequence[str], note: Note
    ) -> WholeJobView:
        """Return the view of a job with its predecessors, successors and last note."""
        return cls.from_record(
            job,
            **_parsed(job),
            predecessors=[PredecessorView.of(each) for each in predecessors],
            successors=[*successors],
            progress=note.progress,
            message=note.message,
            checkpoint=None if note.checkpoint is None else shown(note.checkpoint),
            noted_ms=note.noted_ms,
        )

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> WholeJobView:
        """Return the view that a node has answered with."""
        known: dict[str, Any] = {name: document.get(name) for name in cls.__dataclass_fields__}
        known["predecessors"] = [PredecessorView(**each) for each in document["predecessors"]]
        return cls(**known)


async def show_whole_job(mesh: MeshServices, reference: str) -> WholeJobView:
    """Return all details of the job with this id, id prefix or ULID."""
    job = await mesh.jobs.find(reference)
    queries, names = mesh.jobs.queries, [job.job_id]
    note = await mesh.jobs.notes.of(job.job_id, fresh=True)
    before = await queries.predecessors(names, MAX_SHOWN_LINKS)
    whole = WholeJobView.whole(job, before, await queries.successors(names, MAX_SHOWN_LINKS), note)
    stamp = await _stamp_of_outputs(mesh, job) if whole.output_artifacts else {}
    outputs = [{**each, **stamp} for each in whole.output_artifacts]
    held_back = None
    if job.state == JobState.PENDING:
        held_back = why_held_back(job, await mesh.nodes.all())
    return replace(whole, output_artifacts=outputs, held_back=held_back)


def why_held_back(job: Job, nodes: Iterable[Node]) -> str | None:
    """Return why no live worker of a job's kind claims it: they do not allow its policy root."""
    core = shown(job.manifest)
    root = core.get("policy_root") if isinstance(core, dict) else None
    workers = {
        node.node_id: policy_roots_of(node)
        for node in nodes
        if node.state not in _GONE and covers(job.kind, kinds_of(node))
    }
    return refusal(root, workers)


async def _stamp_of_outputs(mesh: MeshServices, job: Job) -> dict[str, Any]:
    """Return the timestamp of a job's outputs: that of the op that ended it."""
    with suppress(NotKnown):
        await mesh.rhythm.refresh()
        hlc = (await mesh.oplog.find(job.last_op)).hlc
        return {**stamp_of(mesh, hlc)._asdict(), "hlc": hlc}
    return {}


# --- results of actions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScheduledView(RecordView, record=Scheduled):
    """A job that was scheduled, now or before."""


@dataclass(frozen=True)
class SpooledJobView(RecordView, record=SpooledJob):
    """A job in a node's spool; `refused` with the reason if the database refused to schedule it."""


@dataclass(frozen=True)
class RetriedView(ScheduledView):
    """The job that does another one again."""

    retry_of: str

    @classmethod
    def again(cls, job: Job, scheduled: Scheduled) -> RetriedView:
        """Return the view of a retried job."""
        return cls.from_record(scheduled, retry_of=job.job_id)


@dataclass(frozen=True)
class AbortedView(JobView):
    """A job that was to be ended; `aborted` if it had not ended before."""

    aborted: bool

    @classmethod
    def ended(cls, job: Job, *, aborted: bool) -> AbortedView:
        """Return the view of an aborted job."""
        return cls.from_record(job, **_parsed(job), aborted=aborted)


# --- many jobs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CountView:
    """How many jobs of a kind are in each state, and since when the longest waiting could be claimed.

    `suspended` ones are pending, too: they wait without a worker.
    """

    kind: str
    pending: int
    claimed: int
    running: int
    succeeded: int
    failed: int
    aborted: int
    suspended: int
    oldest_ms: int | None


_NONE: Final = {state.value: 0 for state in JobState}


async def job_counts(mesh: MeshServices, pattern: str | None = None) -> list[CountView]:
    """Return the number of jobs by kind and state, optionally of kinds that match a pattern."""
    counts, oldest = await mesh.jobs.queries.counts(), await mesh.jobs.queries.oldest_pending()
    suspended = await count_suspended(mesh.store, mesh.clock)
    return [
        CountView(kind, **_NONE | of_kind, suspended=suspended.get(kind, 0), oldest_ms=oldest.get(kind))
        for kind, of_kind in counts.items()
        if pattern is None or matches(pattern, kind)
    ]


async def jobs_held_back(mesh: MeshServices, limit: int) -> dict[str, str]:
    """Return why no worker claims them, for those of the first jobs that could be claimed otherwise."""
    nodes = await mesh.nodes.all()
    if all(node.policy_roots is None for node in nodes):
        return {}
    reasons = {job.job_id: why_held_back(job, nodes) for job in await ready_jobs(mesh, None, limit)}
    return {job_id: reason for job_id, reason in reasons.items() if reason is not None}


async def ready_jobs(mesh: MeshServices, pattern: str | None, limit: int) -> list[Job]:
    """Return the first jobs that could be claimed now."""
    queries = mesh.jobs.queries
    kinds = [each for each in (await queries.situation()).kinds if pattern is None or matches(pattern, each)]
    return await queries.ready(kinds, limit)


@dataclass(frozen=True)
class PieceView(RecordView, record=Piece):
    """A piece of a job's output or log."""


# --- kinds ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KindView(RecordView, record=KindRules):
    """The rules of a kind, by column."""

    @classmethod
    def of(cls, rules: KindRules) -> KindView:
        """Return the view of a kind's rules."""
        return cls.from_record(rules, is_paused=bool(rules.is_paused), is_audited=bool(rules.is_audited))


async def rules_of(mesh: MeshServices, kind: str) -> KindRules:
    """Return the rules of a kind, empty if there are none."""
    return (await mesh.jobs.queries.situation()).rules.get(kind) or KindRules(kind)


# --- crons and rules -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class CronView(RecordView, record=CronJob):
    """A cron by column; its manifest and options are the values themselves."""

    manifest: dict[str, Any]
    options: dict[str, Any]

    @classmethod
    def of(cls, cron: CronJob) -> CronView:
        """Return the view of a cron."""
        return cls.from_record(cron, manifest=shown(cron.manifest), options=shown(cron.options))


@dataclass(frozen=True)
class RemovedCronView:
    """A cron that was removed."""

    name: str
    removed: bool = True


@dataclass(frozen=True)
class RuleView(RecordView, record=Rule, without=("fired", "minute_ms")):
    """A rule by column; its fields, manifest and options are the values themselves."""

    fields: dict[str, Any]
    manifest: dict[str, Any]
    options: dict[str, Any]

    @classmethod
    def of(cls, rule: Rule) -> RuleView:
        """Return the view of a rule."""
        values = {name: shown(getattr(rule, name)) for name in ("fields", "manifest", "options")}
        return cls.from_record(rule, **values)


@dataclass(frozen=True)
class RemovedRuleView:
    """A rule that was removed."""

    name: str
    removed: bool = True


# --- workers -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerView:
    """A node that works on jobs: on which kinds, for how many it has room, and how many are in hand."""

    node_id: str
    state: str
    kinds: list[str]
    capacity: int
    in_hand: int
    draining: bool

    @classmethod
    def of(cls, node: Node, situation: Situation) -> WorkerView:
        """Return the view of a worker."""
        return cls(
            node_id=node.node_id,
            state=node.state.value,
            kinds=kinds_of(node),
            capacity=node.capacity,
            in_hand=situation.places.get(node.node_id, 0),
            draining=node.node_id in situation.drains,
        )


async def workers(mesh: MeshServices) -> list[WorkerView]:
    """Return all workers; dead nodes only if they have jobs or are drained."""
    situation = await mesh.jobs.queries.situation()
    return [
        WorkerView.of(node, situation)
        for node in await mesh.nodes.all()
        if (node.capacity and node.state not in _GONE)
        or node.node_id in situation.places
        or node.node_id in situation.drains
    ]


async def find_worker(mesh: MeshServices, node_id: str) -> WorkerView:
    """Return a node as a worker."""
    return WorkerView.of(await mesh.nodes.require(node_id), await mesh.jobs.queries.situation())


# --- proofs --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProofView:
    """Whether a job's proof holds, and what is wrong with it; without faults, its trailers."""

    job_id: str
    state: str
    trailers: dict[str, str] | None
    valid: bool
    faults: list[str]
    remarks: list[str]
    archived: bool = False
    """Whether its ops were read from the archive."""


async def verify_proof(mesh: MeshServices, reference: str) -> ProofView:
    """Verify the proof of a job. Ops that were deleted from the database are read from the archive.

    Raises:
        ArchiveFailed: The archive does not have what the log records of it.
    """
    job, log, said = await _find_ended(mesh, reference)
    faults, remarks, proof = await Verifier(log, mesh.artifacts).check(job)
    proof_trailers = None if faults or proof is None else trailers(proof)
    is_archived = isinstance(log, ArchivedJobLog)
    return ProofView(
        job.job_id, job.state, proof_trailers, not faults, faults, [*said, *remarks], is_archived
    )


class Bundled(NamedTuple):
    """Everything needed to verify a job's proof elsewhere; with faults, there is no text."""

    job_id: str
    text: str
    faults: list[str]


async def bundle_proof(mesh: MeshServices, reference: str) -> Bundled:
    """Return the bundle of a job, if its proof is valid. Deleted ops are read from the archive."""
    job, log, _ = await _find_ended(mesh, reference)
    verifier = Verifier(log, mesh.artifacts)
    faults, _, proof = await verifier.check(job)
    text = "" if faults or proof is None else await verifier.bundle(job, proof)
    return Bundled(job.job_id, text, faults)


class _EndedJob(NamedTuple):
    """A job, the log that has its ops, and remarks on where these were found."""

    job: Job
    log: JobLog
    remarks: list[str]


async def _find_ended(mesh: MeshServices, reference: str) -> _EndedJob:
    """Return a job from its row; if that was pruned, from the op log; if that lacks ops, with the archive."""
    log = DatabaseJobLog(mesh.oplog, mesh.jobs.authorship)
    try:
        return _EndedJob(await mesh.jobs.find(reference), log, [])
    except NotKnown as missing:
        pruned = await PrunedJobs(mesh.store, mesh.oplog).find(reference)
        deleted = await mesh.oplog.deleted()
        if deleted and (pruned is None or pruned.job.job_id in deleted.jobs):
            target = mesh.find_archive()
            if target is not None and (found := await _find_archived(mesh, reference, target)) is not None:
                return found
            if target is None:
                missing.hint = "its ops may be in the archive only: set VOX_ARCHIVE_DIR, or pass --archive"
        if pruned is None:
            raise
        return _EndedJob(pruned.job, log, [_pruned_remark(pruned, "the op log has it")])


async def _find_archived(mesh: MeshServices, reference: str, target: FileTarget) -> _EndedJob | None:
    archived = await ArchivedJobs(mesh.store, mesh.oplog, mesh.trusted_keys, target).find(reference)
    if archived is None:
        return None
    where = f"its ops were read from the archive {target}, of {archived.segments} segments"
    return _EndedJob(archived.pruned.job, archived.log, [_pruned_remark(archived.pruned, where)])


def _pruned_remark(pruned: PrunedJob, where: str) -> str:
    return f"its row was pruned at {iso_of(pruned.pruned_ms)}: {where}"


# --- jobs table and op log -----------------------------------------------------------------------------


@dataclass(frozen=True)
class DifferenceView(RecordView, record=Difference):
    """A value that differs between the table of jobs and the op log."""


@dataclass(frozen=True)
class FindingView(RecordView, record=ReplayFinding):
    """An accepted op that the rules do not allow."""


@dataclass(frozen=True)
class RebuildView:
    """How the roster differs from the log, and whether it was made the same."""

    differences: list[DifferenceView]
    findings: list[FindingView]
    repaired: bool


async def rebuild_roster(mesh: MeshServices, *, repair: bool = False) -> RebuildView:
    """Compare the jobs table with the op log, or with `repair` rebuild it from the log."""
    rebuild = Rebuild(mesh.store, mesh.oplog)
    differences = await (rebuild.repair() if repair else rebuild.check())
    return RebuildView(
        await in_slices(DifferenceView.from_record(each) for each in differences),
        await in_slices(FindingView.from_record(each) for each in rebuild.findings),
        repair,
    )
