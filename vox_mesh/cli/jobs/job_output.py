"""Jobs as commands print them: in a table, in full, or as a graph."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from vox_mesh.cli.support.output import Record, fields, printable, show_lines, show_one, show_several
from vox_mesh.jobs.jobs import Scheduled
from vox_mesh.jobs.spooled import SpooledJob
from vox_mesh.model.base.durations import rough_duration
from vox_mesh.model.base.json_text import UNREADABLE, shown
from vox_mesh.model.jobs.proof import iso_time
from vox_mesh.model.jobs.records import EXEC, Job
from vox_mesh.views.graphs.job_graph import OP, Graph, Vertex
from vox_mesh.views.jobs import JobView, ScheduledView, SpooledJobView, WholeJobView

_SHORT_ID: Final = 12
_SHORT: Final = 60
_TIMES: Final = ("created_ms", "not_before_ms", "lease_until_ms", "started_ms", "ended_ms", "noted_ms")
_COLOURS: Final = {"succeeded": "green", "failed": "red", "aborted": "gray", "running": "blue"}


def short_id(job_id: str) -> str:
    """Return the prefix of a job's id that tables show."""
    return job_id[:_SHORT_ID]


def template_text(manifest: str) -> str:
    """Return the kind or the command of the jobs that a stored manifest describes."""
    core = shown(manifest)
    if not isinstance(core, dict) or UNREADABLE in core:
        return UNREADABLE
    return str(core["kind"]) if "kind" in core else f"{EXEC}: {' '.join((*core['command'], *core['args']))}"


def line(job: Job, **more: Any) -> Record:
    """Return a job's row of the table."""
    reason = " ".join((job.reason or "").split())
    return {
        "job_id": short_id(job.job_id),
        "kind": job.kind,
        "state": job.state,
        "priority": job.priority,
        "waits for": job.waits or None,
        "claimer": job.claimer,
        "attempts": job.attempts,
        "created_at": iso_time(job.created_ms),
        **more,
        "reason": reason if len(reason) <= _SHORT else f"{reason[:_SHORT]}…",
    }


def show_jobs(jobs: Sequence[Job], *, as_json: bool) -> None:
    """Print jobs."""
    show_several(job_records(jobs, as_json=as_json), as_json=as_json)


def job_records(jobs: Sequence[Job], *, as_json: bool) -> list[Record]:
    """Return jobs as rows of a table, or whole for JSON."""
    return [vars(JobView.of(job)) if as_json else line(job) for job in jobs]


def show_scheduled(
    scheduled: Sequence[Scheduled], *, as_json: bool, verbose: bool = False, is_one: bool = False
) -> None:
    """Print scheduled jobs, each as a line; with `is_one`, JSON is an object instead of an array."""
    if not (as_json or verbose):
        show_lines([_scheduled_line(each) for each in scheduled] or ["none"])
        return
    records = [vars(ScheduledView.from_record(each)) for each in scheduled]
    if as_json and is_one:
        show_one(records[0], as_json=True)
    else:
        shown = [each if as_json else {**each, "job_id": short_id(each["job_id"])} for each in records]
        show_several(shown, as_json=as_json)


def show_spooled(jobs: Sequence[SpooledJob], *, as_json: bool) -> None:
    """Print jobs that wait in a spool, or were refused."""
    records = [{**vars(SpooledJobView.from_record(each))} for each in jobs]
    if not as_json:
        for each in records:
            each["job_id"], each["scheduled"] = short_id(each["job_id"]), iso_time(each.pop("scheduled_ms"))
    show_several(records, as_json=as_json)


def _scheduled_line(job: Scheduled) -> str:
    done = "spooled" if job.spooled else "scheduled" if job.is_new else "found"
    return f"{done} job {short_id(job.job_id)} ({job.kind})"


def show_ended(jobs: Sequence[Job], *, verbose: bool) -> None:
    """Print jobs that have ended, each as a line."""
    if verbose:
        show_jobs(jobs, as_json=False)
    else:
        show_lines([_ended_line(each) for each in jobs])


def _ended_line(job: Job) -> str:
    reason = " ".join((job.reason or "").split())
    return printable(f"job {short_id(job.job_id)} {job.state}{f': {reason}' if reason else ''}")


def known_job(job: Job, now_ms: int) -> str:
    """Return the line about a job that had been scheduled before, and was not scheduled again."""
    since_ms = job.ended_ms if job.has_ended else job.created_ms
    age = rough_duration(now_ms - (job.created_ms if since_ms is None else since_ms))
    if job.has_ended:
        return f"already {job.state} {age} ago (job {short_id(job.job_id)}), not run again"
    return f"already {job.state}, scheduled {age} ago (job {short_id(job.job_id)}), not scheduled again"


def whole_lines(view: WholeJobView) -> list[str]:
    """Return everything known about a job as lines of text."""
    about = {**vars(view)}
    manifest, outputs = about.pop("manifest"), about.pop("output_artifacts")
    predecessors, successors = about.pop("predecessors"), about.pop("successors")
    checkpoint, progress = about.pop("checkpoint"), about.pop("progress")
    shown = dict(_with_time(*each) for each in about.items())
    shown["progress"] = None if progress is None else f"{progress:.0%}"
    shown["checkpoint"] = None if checkpoint is None else json.dumps(checkpoint, ensure_ascii=False)
    shown["predecessors"] = [vars(each) for each in predecessors] or None
    shown["successors"] = [{"job_id": each} for each in successors] or None
    shown["outputs"] = outputs or None
    text = json.dumps(manifest, ensure_ascii=False, indent=2)
    return [*fields(shown), "manifest", *(f"  {printable(each)}" for each in text.splitlines())]


def _with_time(name: str, value: Any) -> tuple[str, Any]:
    if name not in _TIMES:
        return name, value
    return name.removesuffix("_ms"), None if value is None else iso_time(value)


# --- graphs --------------------------------------------------------------------------------------


def _label(node: Vertex) -> str:
    """Return the label of a vertex."""
    return f"op {node.name}" if node.kind == OP else f"{short_id(node.name)} {node.kind} {node.state}"


def tree(graph: Graph) -> list[str]:
    """Draw jobs without predecessors, and below each its successors; each is unfolded once."""
    below: dict[str, list[tuple[str, str]]] = defaultdict(list)
    waiting = set()
    for edge in graph.edges:
        below[edge.predecessor].append((edge.job_id, edge.awaited))
        waiting.add(edge.job_id)
    roots = [name for name in graph.nodes if name not in waiting]
    return [printable(each) for each in _tree_lines(graph, roots, below)] or ["none"]


def _tree_lines(graph: Graph, roots: Iterable[str], below: dict[str, list[tuple[str, str]]]) -> Iterator[str]:
    unfolded: set[str] = set()
    # The stack of pending lines: name, edge kind, own prefix, and prefix of the lines below.
    left = [(name, "", "", "") for name in reversed([*roots])]
    while left:
        name, awaited, own, inner = left.pop()
        after = [] if name in unfolded else below[name]
        marks = " (after its end)" if awaited == "end" else ""
        again = " (see above)" if name in unfolded and below[name] else ""
        yield f"{own}{_label(graph.nodes[name])}{marks}{again}"
        unfolded.add(name)
        for place, (each, how) in enumerate(reversed(after)):
            branch, rest = ("└─ ", "   ") if place == 0 else ("├─ ", "│  ")
            left.append((each, how, inner + branch, inner + rest))


def dot(graph: Graph) -> list[str]:
    """Draw the graph in Graphviz's format, with arrows from predecessor to successor."""
    lines = ["digraph jobs {", "  rankdir=LR;", "  node [shape=box];"]
    for node in graph.nodes.values():
        colour = _COLOURS.get(node.state, "black")
        lines.append(f"  {_quoted(node.name)} [label={_quoted(_label(node))}, color={colour}];")
    for edge in graph.edges:
        style = "" if edge.awaited == "success" else f" [label={_quoted(edge.awaited)}, style=dashed]"
        lines.append(f"  {_quoted(edge.predecessor)} -> {_quoted(edge.job_id)}{style};")
    return [*lines, "}"]


def _quoted(text: str) -> str:
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
