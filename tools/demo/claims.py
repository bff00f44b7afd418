"""The claims of the demo, each checked against the database and the events of the processes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import orjson

from tools.demo.scenario import CHANGELOG, NOTES, ORCHESTRATORS, PLAN, ROUTES, VICTIM, manifests
from tools.demo.workspace import Event, Workspace
from vox_mesh import Conflict, Job, JobState, Mesh, Message
from vox_mesh.model.jobs.records import CLAIM, COMPLETE
from vox_mesh.model.messages.records import MessageState
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.op_names import RESOLVE
from vox_mesh.model.oplog.verification import ChainReport

_MOST: Final = 10_000


@dataclass(frozen=True)
class Claim:
    """A claim: what was found, and what contradicts it, if anything does."""

    name: str
    found: list[str]
    faults: list[str]


@dataclass(frozen=True)
class Evidence:
    """The evidence for all claims."""

    jobs: dict[str, Job]
    after: dict[str, list[str]]
    """The jobs that each one waited for."""
    entries: list[LogEntry]
    chains: list[ChainReport]
    messages: list[Message]
    conflicts: list[Conflict]
    plan: dict[str, Any] | None
    notes: dict[str, Any] | None
    events: list[Event]
    fenced_files: dict[str, list[dict[str, Any]]]

    def ops(self, kind: str) -> Iterator[tuple[LogEntry, Any]]:
        """Return the accepted ops of a kind, in the order of their commits, with their payloads."""
        for entry in self.entries:
            if entry.kind == kind and entry.accepted:
                yield entry, orjson.loads(entry.payload)

    def events_of(self, event: str) -> list[Event]:
        """Return the events of a kind."""
        return [each for each in self.events if each["event"] == event]

    def label(self, job_id: str) -> str:
        """Return the name of a job."""
        job = self.jobs.get(job_id)
        return job_id[:12] if job is None else f"{job.kind} {job.payload['name']}"


async def gather(mesh: Mesh, workspace: Workspace) -> Evidence:
    """Read all evidence from the database and the event log."""
    jobs = await mesh.jobs.queries.listed(limit=_MOST)
    after: dict[str, list[str]] = defaultdict(list)
    for each in await mesh.jobs.queries.predecessors(job.job_id for job in jobs):
        after[each.job_id].append(each.predecessor)
    entries = [entry async for page in mesh.oplog.entries() for entry in page]
    return Evidence(
        jobs={job.job_id: job for job in jobs},
        after=after,
        entries=sorted(entries, key=lambda entry: entry.id),
        chains=await mesh.oplog.verify(),
        messages=await mesh.messages.queries.listed(limit=_MOST),
        conflicts=await mesh.conflicts.list(),
        plan=await mesh.occ.read("memories", PLAN),
        notes=await mesh.occ.read("memories", NOTES),
        events=workspace.events(),
        fenced_files=workspace.fenced_files.lines(),
    )


def check_claims(evidence: Evidence) -> list[Claim]:
    """Check all claims. One whose check fails is wrong."""
    return [_worked_out(claim, evidence) for claim in CLAIMS]


def _worked_out(claim: Callable[[Evidence], Claim], evidence: Evidence) -> Claim:
    try:
        return claim(evidence)
    except (LookupError, StopIteration, TypeError, ValueError) as error:
        return Claim(claim.__name__, [], [f"it can't be worked out: {error!r}"])


# --- the claims ----------------------------------------------------------------------------------


def jobs(evidence: Evidence) -> Claim:
    """Every job ended exactly once by the log, at the node that the database names."""
    ends: Counter[str] = Counter()
    for _, payload in evidence.ops(COMPLETE):
        ends.update(item["job_id"] for item in payload["jobs"])
    did = {(each["job"], each["claim_token"], each["node"]) for each in evidence.events_of("did")}
    faults = []
    for job_id, job in evidence.jobs.items():
        label = evidence.label(job_id)
        if job.state != JobState.SUCCEEDED:
            faults.append(f"{label} is {job.state}")
        if ends[job_id] != 1:
            faults.append(f"{label} was completed {ends[job_id]} times")
        if (job_id, job.claim_token, job.claimer) not in did:
            faults.append(f"{label} is {job.claimer}'s by the database, who did not tell of it")
    wanted = len(manifests())
    if len(evidence.jobs) != wanted:
        faults.append(f"there are {len(evidence.jobs)} jobs instead of {wanted}")
    by = Counter(job.claimer for job in evidence.jobs.values())
    shares = ", ".join(f"{name} {by[name]}" for name in ORCHESTRATORS)
    return Claim("jobs", [f"{len(evidence.jobs)} of {wanted} ended, each exactly once: {shares}"], faults)


def order(evidence: Evidence) -> Claim:
    """No job was claimed before all of its dependencies were complete, by the order of commits."""
    claimed: dict[str, int] = {}
    completed: dict[str, int] = {}
    for kind, first in ((CLAIM, claimed), (COMPLETE, completed)):
        for entry, payload in evidence.ops(kind):
            for item in payload["jobs"]:
                first.setdefault(item["job_id"], entry.id)
    pairs = [(job_id, each) for job_id, names in evidence.after.items() for each in names]
    faults = [
        f"{evidence.label(job_id)} was claimed before {evidence.label(each)} was complete"
        for job_id, each in pairs
        if claimed[job_id] < completed[each]
    ]
    return Claim("order", [f"no job began before what it waits for ({len(pairs)} edges)"], faults)


def routes(evidence: Evidence) -> Claim:
    """Routed jobs were done at their nodes."""
    routed = [job for job in evidence.jobs.values() if job.kind in ROUTES]
    faults = [
        f"{evidence.label(job.job_id)} was done by {job.claimer}"
        for job in routed
        if job.claimer != ROUTES[job.kind]
    ]
    if not routed:
        faults.append("nothing was routed")
    return Claim("routes", [f"all {len(routed)} of {', '.join(ROUTES)} ran where they are routed to"], faults)


def takeover(evidence: Evidence) -> Claim:
    """The work of the killed node was taken over by others, and it could not interfere any more."""
    killed = next(each for each in evidence.events if each["event"] == "killed")
    later = [e for e in evidence.events[evidence.events.index(killed) :] if e["node"] not in ("demo", VICTIM)]
    core = evidence.jobs[killed["job"]]
    letter = next(each for each in evidence.messages if each.message_uuid == killed["message"])
    job = next(e for e in later if e["event"] == "began" and e["job"] == core.job_id)
    lock = next(e for e in later if e["event"] == "holds" and e["key"] == CHANGELOG)
    message = next(e for e in later if e["event"] == "received" and e["message"] == killed["message"])
    faults = []
    if core.claimer == VICTIM or core.attempts < 2:
        faults.append("the job was not taken over")
    if lock["token"] <= killed["token"]:
        faults.append(f"{lock['node']} has the lock under token {lock['token']}, after {killed['token']}")
    if letter.delivery_attempts < 2 or letter.state != MessageState.ACKED:
        faults.append("the message was not taken over")
    if not any(each["token"] == killed["token"] for each in evidence.events_of("refused")):
        faults.append("a late write with the old token was not refused")
    if any(
        line["node"] == VICTIM and line["token"] == killed["token"]
        for line in evidence.fenced_files[CHANGELOG]
    ):
        faults.append(f"{VICTIM} wrote under token {killed['token']} after all")
    found = [
        f"{VICTIM} was killed with -9, with {evidence.label(core.job_id)}, a lock and a message in hand",
        f"job: {job['node']} goes on at step {job['done']} of {job['steps']}, {_after(job, killed)}",
        f"lock: {lock['node']} has it, token {killed['token']} -> {lock['token']}, {_after(lock, killed)}",
        f"message: {message['node']} has it, {_after(message, killed)}",
        f"a late write with its token {killed['token']} was refused",
    ]
    return Claim("takeover", found, faults)


def fences(evidence: Evidence) -> Claim:
    """The tokens that a file has seen only rise, and belong to the holders that reported them."""
    held = {(each["key"], each["token"]): each["node"] for each in evidence.events_of("holds")}
    faults, seen = [], []
    for key, lines in evidence.fenced_files.items():
        tokens = [line["token"] for line in lines]
        short = key.removeprefix("file:")
        faults += [f"{short} was written under token {b} after {a}" for a, b in pairwise(tokens) if b <= a]
        faults += [
            f"{short} was written by {line['node']} under token {line['token']}, which was not its own"
            for line in lines
            if held.get((key, line["token"])) != line["node"]
        ]
        writers = len({line["node"] for line in lines})
        seen.append(f"{short} {tokens[0]} to {tokens[-1]} ({len(tokens)} writes by {writers} agents)")
    if not evidence.fenced_files:
        faults.append("nothing was written")
    return Claim("fences", [f"tokens only rise: {', '.join(seen)}"], faults)


def messages(evidence: Evidence) -> Claim:
    """Every message was acknowledged, by an agent that reported having received it."""
    received = {each["message"] for each in evidence.events_of("received")}
    faults = []
    for each in evidence.messages:
        label = f"{each.msg_type} from {each.sender_agent} to {each.receiver_agent}"
        if each.state != MessageState.ACKED:
            faults.append(f"{label} is {each.state}")
        if each.message_uuid not in received:
            faults.append(f"{label} reached no agent")
    if not evidence.messages:
        faults.append("there are no messages")
    return Claim("messages", [f"{len(evidence.messages)} sent, all acknowledged"], faults)


def conflict(evidence: Evidence) -> Claim:
    """The one conflict is resolved, on record, and the row has the decided value; no other write was lost."""
    if len(evidence.conflicts) != 1:
        return Claim("conflict", [], [f"there are {len(evidence.conflicts)} conflicts instead of 1"])
    first = evidence.conflicts[0]
    faults = ["it is open"] if first.is_open else []
    wanted = first.left["content"]
    if evidence.plan is None or evidence.plan["content"] != wanted:
        faults.append(f"the plan is {evidence.plan and evidence.plan['content']!r} instead of {wanted!r}")
    if [payload["conflict_id"] for _, payload in evidence.ops(RESOLVE)] != [first.conflict_id]:
        faults.append("the log does not tell of the decision")
    parts = sorted(job.payload["name"] for job in evidence.jobs.values() if job.kind == "report")
    if evidence.notes is None or evidence.notes["content"].split() != parts:
        faults.append("the release notes lack a report")
    events_of = f"{first.left_node} and {first.right_node} both wrote one row; resolved: {wanted!r} is taken"
    return Claim("conflict", [events_of], faults)


def chains(evidence: Evidence) -> Claim:
    """The log verifies."""
    faults = [
        f"{chain.node_id}, entry {chain.seq}: {chain.problem}" for chain in evidence.chains if chain.problem
    ]
    known = {chain.node_id for chain in evidence.chains}
    faults += [f"{name} has no chain" for name in ORCHESTRATORS if name not in known]
    entries = sum(chain.entries for chain in evidence.chains)
    return Claim("chains", [f"{entries} entries in {len(known)} chains: intact"], faults)


CLAIMS: Final = (jobs, order, routes, takeover, fences, messages, conflict, chains)


def _after(event: Event, killed: Event) -> str:
    return f"after {max(0, event['at_ms'] - killed['at_ms']) / 1_000:.1f} s"
