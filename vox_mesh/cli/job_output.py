"""Jobs as commands print them: by column, on a line, or in full."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from vox_mesh.cli.output import Record, fields, printable, show_lines, show_one, show_several
from vox_mesh.jobs.jobs import Scheduled
from vox_mesh.jobs.notes import Note
from vox_mesh.jobs.roster import Predecessor
from vox_mesh.model.jobs import Job
from vox_mesh.model.proof import iso_time

_SHORT_ID: Final = 12
_SHORT: Final = 60
_TIMES: Final = ("created_ms", "not_before_ms", "lease_until_ms", "started_ms", "ended_ms", "noted_ms")


def short_id(job_id: str) -> str:
    """As much of a job's id as people need to name it."""
    return job_id[:_SHORT_ID]


def record(job: Job) -> dict[str, Any]:
    """A job by column; its manifest and its outputs are the values themselves."""
    row = job._asdict()
    del row["id"], row["seed"]  # nobody else has a use for them
    return {**row, "manifest": orjson.loads(job.manifest), "output_artifacts": job.outputs}


def line(job: Job, **more: Any) -> Record:
    """A job as people want to see it among others."""
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
    show_several([record(job) if as_json else line(job) for job in jobs], as_json=as_json)


def show_scheduled(scheduled: Sequence[Scheduled], *, as_json: bool, is_one: bool) -> None:
    """Print what was scheduled; `is_one` if it can only be one."""
    records = [each._asdict() for each in scheduled]
    if as_json and is_one:
        show_one(records[0], as_json=True)
    else:
        shown = [each if as_json else {**each, "job_id": short_id(each["job_id"])} for each in records]
        show_several(shown, as_json=as_json)


class Whole:
    """All that is known of a job."""

    def __init__(
        self, job: Job, predecessors: Sequence[Predecessor], successors: Sequence[str], note: Note
    ) -> None:
        self._job = job
        self._predecessors = [
            {"job_id": each.predecessor, "awaited": each.awaited, "state": each.state, "kind": each.kind}
            for each in predecessors
        ]
        self._successors = list(successors)
        self._note = note

    def show(self, *, as_json: bool) -> None:
        """Print it."""
        if as_json:
            show_one(self._record(), as_json=True)
        else:
            show_lines(self._lines())

    def _record(self) -> dict[str, Any]:
        note = self._note
        return {
            **record(self._job),
            "predecessors": self._predecessors,
            "successors": self._successors,
            "progress": note.progress,
            "message": note.message,
            "checkpoint": None if note.checkpoint is None else orjson.loads(note.checkpoint),
            "noted_ms": note.noted_ms,
        }

    def _lines(self) -> list[str]:
        about = self._record()
        manifest, outputs = about.pop("manifest"), about.pop("output_artifacts")
        predecessors, successors = about.pop("predecessors"), about.pop("successors")
        checkpoint, progress = about.pop("checkpoint"), about.pop("progress")
        told = dict(_with_time(*each) for each in about.items())
        told["progress"] = None if progress is None else f"{progress:.0%}"
        told["checkpoint"] = None if checkpoint is None else json.dumps(checkpoint, ensure_ascii=False)
        told["predecessors"] = predecessors or None
        told["successors"] = [{"job_id": each} for each in successors] or None
        told["outputs"] = outputs or None
        text = json.dumps(manifest, ensure_ascii=False, indent=2)
        return [*fields(told), "manifest", *(f"  {printable(each)}" for each in text.splitlines())]


def _with_time(name: str, value: Any) -> tuple[str, Any]:
    if name not in _TIMES:
        return name, value
    return name.removesuffix("_ms"), None if value is None else iso_time(value)


def count_lines(
    counts: Mapping[str, Mapping[str, int]], oldest: Mapping[str, int], states: Sequence[str]
) -> list[dict[str, Any]]:
    """How many jobs there are of each kind in each state, and since when the oldest could be claimed."""
    return [
        {"kind": kind, **{state: of_kind.get(state, 0) for state in states}, "oldest_ms": oldest.get(kind)}
        for kind, of_kind in counts.items()
    ]
