"""Results and artifacts of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from vox_mesh.errors import ArtifactMissing
from vox_mesh.http.access import Scope
from vox_mesh.http.api.jobs.jobs import JobName
from vox_mesh.http.api.operations import Content, Operations, Text
from vox_mesh.http.principals.needs import OWNER, READS_OUTPUTS
from vox_mesh.jobs.proof.blob_files import PIECE
from vox_mesh.jobs.results import find_output, read_result
from vox_mesh.runtime.services import MeshServices

ARTIFACTS: Final = Operations("jobs")

ContentHash = Annotated[str, Field(pattern="^blake3:[0-9a-f]{64}$")]

_MAX_RESULT: Final = 2**20
"""The bytes of a result that is answered as JSON; larger ones are read as artifacts."""

_FETCH_S: Final = 600.0
"""The time in which the file of an artifact is fetched from another node."""


@dataclass(frozen=True)
class ResultView:
    """The result of a job that has succeeded: what its handler returned, or what its command printed."""

    job_id: str
    state: str
    result: Any


@ARTIFACTS.get("/v1/jobs/{job}/result", needs=READS_OUTPUTS, scope=Scope.WRITE, takes_s=_FETCH_S)
async def read_job_result(mesh: MeshServices, job: JobName) -> ResultView:
    """Return the result of a job that has succeeded."""
    found, read = await mesh.jobs.find(job), partial(mesh.artifacts.body, limit=_MAX_RESULT)
    return ResultView(found.job_id, found.state, await read_result(found, read))


@ARTIFACTS.get("/v1/jobs/{job}/artifacts/{name}", needs=READS_OUTPUTS, scope=Scope.WRITE, takes_s=_FETCH_S)
async def read_job_artifact(mesh: MeshServices, job: JobName, name: Text) -> Content:
    """Return an artifact of a job; it is verified, and fetched from the node that has it."""
    output = find_output(await mesh.jobs.find(job), name)
    return await _content(await mesh.artifacts.path(output.hash))


@ARTIFACTS.get("/v1/artifacts/{content_hash}", needs=OWNER, scope=Scope.RELAY)
async def read_artifact(mesh: MeshServices, content_hash: ContentHash) -> Content:
    """Return a file of this node by its hash, for other nodes; the reader verifies it."""
    path = mesh.artifacts.local_path(content_hash)
    if path is None:
        raise ArtifactMissing(f"the artifact {content_hash} is not on this node")
    return await _content(path)


async def _content(path: Path) -> Content:
    size = (await asyncio.to_thread(path.stat)).st_size
    return Content(_pieces(path), size)


async def _pieces(path: Path) -> AsyncGenerator[list[bytes], None]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while True:
            piece = await asyncio.to_thread(file.read, PIECE)
            yield [piece]
            if len(piece) < PIECE:
                return
