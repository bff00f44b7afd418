"""Options of typed jobs: those of their kind, and those of one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict

from vox_mesh.errors import BadValue
from vox_mesh.jobs.jobs import Reference
from vox_mesh.model.base.durations import Duration, checked_seconds
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.manifest_fields import EPOCH
from vox_mesh.model.rhythm.tempo import Until

_MAX_RETRIES: Final = 99
_MAX_DELAY_S: Final = 365 * 86_400


class JobOptions(TypedDict, total=False):
    """What all jobs of a kind have, unless a call says otherwise."""

    retries: int
    """How often a failed job is tried again: one less than `max_attempts`."""
    priority: int
    max_interruptions: int
    backoff: Duration
    lease: Duration | Until
    timeout: Duration
    score: Mapping[str, Any]
    budget: Mapping[str, Any]
    tags: Iterable[str]


class CallOptions(JobOptions, total=False):
    """What one call may have besides."""

    delay: Duration
    """How long after it was scheduled the job may start."""
    run_at: datetime
    after: Iterable[Reference | Mapping[str, str]]
    at: str
    during: str
    ulid: str
    new: bool
    """With `False`, a job with the same arguments is the same job."""


def manifest_of(kind: str, options: Mapping[str, Any], payload: Mapping[str, Any], now_ms: int) -> Manifest:
    """Return the manifest of a call. A delay counts from `now_ms`. Raises `BadManifest` or `BadValue`."""
    return Manifest.of(kind=kind, payload=dict(payload), **manifest_fields(options, now_ms))


def manifest_fields(options: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    """Return the fields of a manifest that options stand for. Raises `BadValue`."""
    fields = {name: value for name, value in options.items() if value is not None and name != "new"}
    if (retries := fields.pop("retries", None)) is not None:
        fields["max_attempts"] = _checked_retries(retries) + 1
    if (delay := fields.pop("delay", None)) is not None:
        fields["run_at"] = _run_at(fields, delay, now_ms)
    for name in fields.keys() & {"score", "budget"}:
        fields[name] = dict(fields[name])
    for name in fields.keys() & {"tags", "after"}:
        fields[name] = [each if isinstance(each, str | Mapping) else each.job_id for each in fields[name]]
    return fields


def _checked_retries(retries: int) -> int:
    """Return the number of retries. Raises `BadValue` if a job can't have this number."""
    if type(retries) is not int or not 0 <= retries <= _MAX_RETRIES:
        raise BadValue(f"retries must be an integer from 0 to {_MAX_RETRIES}, got {retries!r}")
    return retries


def _run_at(fields: Mapping[str, Any], delay: Duration, now_ms: int) -> datetime:
    if "run_at" in fields:
        raise BadValue("delay and run_at can't be combined", hint="pass one of them")
    delay_s = checked_seconds("delay", delay, 0, _MAX_DELAY_S, hint="the longest delay is 365d")
    return EPOCH + timedelta(milliseconds=now_ms + round(delay_s * 1_000))
