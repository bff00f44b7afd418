"""The log as the verification of a proof reads it: from the database, or from its archive."""

from __future__ import annotations

from typing import Any, Protocol

from vox_mesh.jobs.authorship import JobAuthorship
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import Key
from vox_mesh.oplog.oplog import OpLog


class JobLog(Protocol):
    """Finds the ops of jobs, and says whether their authors signed them."""

    async def find(self, op_id: str) -> LogEntry:
        """Return the entry of an op; raise `NotKnown` if there is none."""

    async def is_scheduled(self, job: Job) -> bool:
        """Return whether an op that its author signed schedules a job with these values."""

    async def is_authentic(self, entry: LogEntry) -> bool:
        """Return whether the author signed the entry, or one that follows it in the chain."""

    async def has_changed_verdict(self, entry: LogEntry) -> bool:
        """Return whether the verdict of an entry, or one near it, was changed since its author sealed it."""

    async def trusted_keys(self, chain: str) -> list[Key]:
        """Return the keys of a chain that its own entries or the owner vouch for."""

    async def barred_from(self, kind: str, completion: LogEntry, job_id: str, claim_token: Any) -> str | None:
        """Return the node that a kind was routed to when the author of a completion claimed the job."""


class DatabaseJobLog:
    """The log in the database."""

    def __init__(self, oplog: OpLog, authorship: JobAuthorship) -> None:
        self._authorship = authorship
        self.find = oplog.find
        self.is_authentic = oplog.is_authentic
        self.has_changed_verdict = oplog.has_changed_verdict
        self.trusted_keys = oplog.trusted_keys
        self.barred_from = oplog.routes.barred_from

    async def is_scheduled(self, job: Job) -> bool:
        """Return whether an op that its author signed schedules a job with these values."""
        return await self._authorship.is_scheduled(job)
