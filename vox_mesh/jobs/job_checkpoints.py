"""Checkpoints: signed by the worker that wrote them, and resumed from only if it had started the job."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import TooLarge, UnreadableText
from vox_mesh.jobs.queries import json
from vox_mesh.jobs.transitions import SQL
from vox_mesh.model.base.canonical import text_id
from vox_mesh.model.base.json_text import read_stored
from vox_mesh.model.base.keys import SigningKey, is_signed
from vox_mesh.model.jobs.records import START, Job
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import key_at
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_SQL: Final = named("job_notes")
_PREFIX: Final = b"vox-mesh checkpoint 1\n"
_FIELDS: Final = len(LogEntry._fields)


class SignedCheckpoint(NamedTuple):
    """A checkpoint as JSON, the op that started the attempt, and the worker's signature."""

    text: str
    start_op: str
    signature: str


class JobCheckpoints:
    """Signs the checkpoints of this node, and verifies the ones from which it resumes."""

    def __init__(self, store: Store, trusted_keys: TrustedKeys, key: Callable[[], SigningKey]) -> None:
        self._store = store
        self._trusted_keys = trusted_keys
        self._key = key

    def sign(self, job: Job, text: str) -> SignedCheckpoint:
        """Return a checkpoint of a running job, signed."""
        return SignedCheckpoint(
            text, job.last_op, self._key().sign(self._signed_text(job, job.last_op, text))
        )

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
        start = await self._entry(found.start_op)
        if (
            start is None
            or not _starts(start, job.job_id)
            or not await self._trusted_keys.is_authentic(start)
        ):
            return False
        key = key_at(start.seq, await self._trusted_keys.of_chain(start.node_id))
        text = self._signed_text(job, found.start_op, found.text)
        return key is not None and is_signed(text, found.signature, key)

    async def _entry(self, op_id: str) -> LogEntry | None:
        try:
            rows = await self._store.read(
                SQL["ends"], (*self._store.mesh_id, "[]", json([op_id])), fresh=True
            )
        except (TooLarge, UnreadableText):  # only a hostile entry is so
            return None
        entries = (LogEntry._make(row[:_FIELDS]) for row in rows)
        return next((entry for entry in entries if entry.op_id == op_id), None)

    def _signed_text(self, job: Job, start_op: str, text: str) -> bytes:
        fields = [*self._store.mesh_id, job.job_id, start_op, text_id(text)]
        return _PREFIX + orjson.dumps(fields)


def _starts(entry: LogEntry, job_id: str) -> bool:
    """Return whether an entry starts an attempt at a job.

    Its verdict does not matter: a worker signs a checkpoint only after its start was accepted.
    """
    if entry.kind != START:
        return False
    try:
        return any(item["job_id"] == job_id for item in orjson.loads(entry.payload)["jobs"])
    except (ValueError, TypeError, KeyError):
        return False
