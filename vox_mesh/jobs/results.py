"""Results of jobs: what a handler returned, or what a command printed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from vox_mesh.errors import JobNotSucceeded, NotKnown
from vox_mesh.model.base.json_text import read_json
from vox_mesh.model.jobs.job_end import JobEnd
from vox_mesh.model.jobs.records import EXEC, Job, JobState

RESULT: Final = "result"
"""The name of the artifact with the value that a handler returned."""

STDOUT: Final = "stdout"
"""The name of the artifact with the output of a command."""

ReadArtifact = Callable[[str], Awaitable[bytes]]
"""Returns the content with a hash."""


class OutputFile(NamedTuple):
    """An output of a job, by name."""

    name: str
    hash: str
    size: int
    type: str


def outputs_of(job: Job) -> dict[str, OutputFile]:
    """Return the outputs of a job, by name; of several with one name, the last."""
    names = OutputFile._fields
    return {each["name"]: OutputFile(*(each[name] for name in names)) for each in job.outputs}


def find_output(job: Job, name: str) -> OutputFile:
    """Return an output of a job. Raises `NotKnown` if it has none of this name."""
    outputs = outputs_of(job)
    if name not in outputs:
        hint = f"it has {', '.join(sorted(outputs))}" if outputs else "it has none"
        raise NotKnown(f"job {job.job_id} has no artifact {name!r}", hint=hint)
    return outputs[name]


async def read_result(job: Job, read: ReadArtifact) -> Any:
    """Return the result of a job that has succeeded, `None` if its handler returned nothing.

    Raises `JobNotSucceeded` otherwise.
    """
    if job.state != JobState.SUCCEEDED:
        reason = f": {job.reason}" if job.reason else ""
        hint = "see `vox-mesh job logs`" if job.has_ended else "wait until it has ended"
        raise JobNotSucceeded(f"job {job.job_id} is {job.state}{reason}", hint=hint)
    return await _read_content(job.kind, {name: each.hash for name, each in outputs_of(job).items()}, read)


async def read_signed_result(core: Mapping[str, Any], end: JobEnd, read: ReadArtifact) -> Any:
    """Return the result of a job that has succeeded, as the op that ended it signs it."""
    return await _read_content(core.get("kind", EXEC), end.hashes, read)


async def _read_content(kind: str, hashes: Mapping[str, str], read: ReadArtifact) -> Any:
    is_command = kind == EXEC
    content_hash = hashes.get(STDOUT if is_command else RESULT)
    if content_hash is None:
        return "" if is_command else None
    body = await read(content_hash)
    # A shell removes the line breaks at the end of an output, too.
    return body.decode(errors="replace").rstrip("\n") if is_command else read_json(body)
