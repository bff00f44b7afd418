"""Checkpoints: signed by the worker that wrote them, and resumed from only if it had started the job."""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.jobs.steps.attempt_signatures import AttemptSignatures
from vox_mesh.model.base.canonical import text_id
from vox_mesh.model.base.json_text import read_stored
from vox_mesh.model.jobs.records import Job
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_SQL: Final = named("job_notes")
_PREFIX: Final = b"vox-mesh checkpoint 1\n"


class SignedCheckpoint(NamedTuple):
    """A checkpoint as JSON, the op that started the attempt, and the worker's signature."""

    text: str
    start_op: str
    signature: str


class JobCheckpoints:
    """Signs the checkpoints of this node, and verifies the ones from which it resumes."""

    def __init__(self, store: Store, signatures: AttemptSignatures) -> None:
        self._store = store
        self._signatures = signatures

    def sign(self, job: Job, text: str) -> SignedCheckpoint:
        """Return a checkpoint of a running job, signed."""
        signed = self._signatures.sign(self._signed_text(job, job.last_op, text))
        return SignedCheckpoint(text, job.last_op, signed)

    async def resumed(self, job: Job) -> Any:
        """Return the last checkpoint of an earlier attempt, or `None` if there is none that can be believed.

        Raises `BadValue` if the checkpoint of an authentic worker can't be read.
        """
        rows = await self._store.read(_SQL["checkpoint"], (*self._store.mesh_id, job.job_id), fresh=True)
        if not rows:
            return None
        found = SignedCheckpoint._make(rows[0])
        if await self._is_authentic(job, found):
            return read_stored(found.text)
        _log.error(
            "checkpoint ignored, no worker that started the job has signed it: job_id=%s kind=%s",
            *(job.job_id, job.kind),
        )
        return None

    async def _is_authentic(self, job: Job, found: SignedCheckpoint) -> bool:
        """Return whether the node that started an attempt at the job has signed the checkpoint."""
        if not all(type(each) is str for each in found):
            return False
        text = self._signed_text(job, found.start_op, found.text)
        return await self._signatures.is_authentic(job.job_id, found.start_op, text, found.signature)

    def _signed_text(self, job: Job, start_op: str, text: str) -> bytes:
        fields = [*self._store.mesh_id, job.job_id, start_op, text_id(text)]
        return _PREFIX + orjson.dumps(fields)
