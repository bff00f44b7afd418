"""Retries: a job that has ended is scheduled again as a new job, whose manifest names the old one."""

from __future__ import annotations

from datetime import timedelta

from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.rhythm.bindings import AT_DOWNBEAT, phase_in


def retry_manifest(job: Job) -> Manifest:
    """Return the manifest of a job's retry."""
    options = {
        "after": None,
        "retry_of": job.job_id,
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "max_interruptions": job.max_interruptions,
        "backoff": timedelta(milliseconds=job.backoff_ms),
        "at": job.binding if job.binding == AT_DOWNBEAT else None,
        "during": phase_in(job.binding),
    }
    if job.lease_ms is not None:
        options["lease"] = timedelta(milliseconds=job.lease_ms)
    return Manifest.of_core(job.core).model_copy(update=options)
