"""Inference snapshots: records of a job's model calls, for audits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.documents.documents import WORD, is_content_id, is_word, short
from vox_mesh.model.jobs.proof import iso_time

SNAPSHOT: Final = "likewise.inference.snapshot"
"""The type of an artifact that is a snapshot."""

MAX_SNAPSHOT_BYTES: Final = 4 * 2**20
MAX_INPUTS: Final = 1_024

_VERSION: Final = 1


def inference_snapshot(
    source_job: str,
    model: str,
    version: str,
    prompt: Any,
    output: Any,
    inputs: Sequence[Any],
    started_ms: int,
    finished_ms: int,
) -> dict[str, Any]:
    """Return the snapshot of one model call; its canonical text is the artifact.

    Prompt, output and each input may be any JSON value. Raises `BadValue` if a field is invalid.
    """
    if not is_content_id(source_job):
        raise BadValue(f"{short(source_job)} is no job id", hint="64 lowercase hexadecimal digits")
    for field, word in (("model", model), ("version", version)):
        if not is_word(word):
            raise BadValue(f"the {field} is {short(word)}, and not a name", hint=f"use {WORD}")
    if isinstance(inputs, str | bytes) or len(inputs) > MAX_INPUTS:
        raise BadValue("the inputs are not a list, or too long", hint=f"name at most {MAX_INPUTS}")
    snapshot = {
        "finished_at": iso_time(max(started_ms, finished_ms)),  # the clock may have been set back meanwhile
        "inputs": list(inputs),
        "model": model,
        "output": output,
        "prompt": prompt,
        "source_job": source_job,
        "started_at": iso_time(started_ms),
        "type": SNAPSHOT,
        "v": _VERSION,
        "version": version,
    }
    size = len(canonical(snapshot).encode())
    if size > MAX_SNAPSHOT_BYTES:
        raise BadValue(
            f"the snapshot takes {size} bytes; at most {MAX_SNAPSHOT_BYTES} fit",
            hint="keep large inputs as artifacts, and name their hashes",
        )
    return snapshot
