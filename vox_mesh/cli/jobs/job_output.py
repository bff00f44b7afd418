"""Jobs as commands print them: by column, on a line, or in full."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from vox_mesh.cli.support.output import Record, fields, printable, show_one, show_several
from vox_mesh.jobs.jobs import Scheduled
from vox_mesh.model.jobs.proof import iso_time
from vox_mesh.model.jobs.records import Job
from vox_mesh.views.jobs import JobView, ScheduledView, WholeJobView

_SHORT_ID: Final = 12
_SHORT: Final = 60
_TIMES: Final = ("created_ms", "not_before_ms", "lease_until_ms", "started_ms", "ended_ms", "noted_ms")


def short_id(job_id: str) -> str:
    """As much of a job's id as people need to name it."""
    return job_id[:_SHORT_ID]


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
    show_several([vars(JobView.of(job)) if as_json else line(job) for job in jobs], as_json=as_json)


def show_scheduled(scheduled: Sequence[Scheduled], *, as_json: bool, is_one: bool) -> None:
    """Print what was scheduled; `is_one` if it can only be one."""
    records = [vars(ScheduledView.of(each)) for each in scheduled]
    if as_json and is_one:
        show_one(records[0], as_json=True)
    else:
        shown = [each if as_json else {**each, "job_id": short_id(each["job_id"])} for each in records]
        show_several(shown, as_json=as_json)


def whole_lines(view: WholeJobView) -> list[str]:
    """All that is known of a job, as people want to see it."""
    about = {**vars(view)}
    manifest, outputs = about.pop("manifest"), about.pop("output_artifacts")
    predecessors, successors = about.pop("predecessors"), about.pop("successors")
    checkpoint, progress = about.pop("checkpoint"), about.pop("progress")
    told = dict(_with_time(*each) for each in about.items())
    told["progress"] = None if progress is None else f"{progress:.0%}"
    told["checkpoint"] = None if checkpoint is None else json.dumps(checkpoint, ensure_ascii=False)
    told["predecessors"] = [vars(each) for each in predecessors] or None
    told["successors"] = [{"job_id": each} for each in successors] or None
    told["outputs"] = outputs or None
    text = json.dumps(manifest, ensure_ascii=False, indent=2)
    return [*fields(told), "manifest", *(f"  {printable(each)}" for each in text.splitlines())]


def _with_time(name: str, value: Any) -> tuple[str, Any]:
    if name not in _TIMES:
        return name, value
    return name.removesuffix("_ms"), None if value is None else iso_time(value)
