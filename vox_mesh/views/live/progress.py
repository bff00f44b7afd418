"""The progress of running jobs: what the op log does not have."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import orjson

from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.schema.statements import named

MAX_JOBS: Final = 500
"""The maximum number of running jobs whose progress is read."""

_PROGRESS: Final = named("overview")["progress"]
_READ_TIMEOUT_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class ProgressLine:
    """What a running job has reported last.

    `log` is the number of the last piece of its log, `steps` that of the last row of its durable steps.
    """

    job_id: str
    fraction: float | None
    message: str | None
    log: int
    steps: int


async def read_progress(mesh: MeshServices) -> tuple[ProgressLine, ...]:
    """Return the progress of running jobs, except jobs without a report."""
    values = (*mesh.store.mesh_id, mesh.clock.now_ms, MAX_JOBS)
    lines: list[ProgressLine] = []
    for row in await mesh.store.read(_PROGRESS, values, timeout=_READ_TIMEOUT_S):
        with suppress(ValueError):  # a row holds text that no node can have written
            line = ProgressLine(*orjson.loads(bytes.fromhex(row["record"])))
            if line.fraction is not None or line.message is not None or line.log or line.steps:
                lines.append(line)
    return tuple(lines)
