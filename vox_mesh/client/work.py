"""Work through a node: taking jobs, renewing their leases, and reporting."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vox_mesh.client.connection import CALL_S, NodeConnection
from vox_mesh.client.jobs import JobName, path_of
from vox_mesh.client.long_wait import LongWait
from vox_mesh.client.records import job_of, taken_of
from vox_mesh.errors import BadValue
from vox_mesh.model.base.durations import Duration, seconds_of, seconds_or_none
from vox_mesh.model.jobs.question import Question
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.jobs.taken_job import TakenJob

if TYPE_CHECKING:
    from vox_mesh.jobs.work.reports import Report

_BYTES = "application/octet-stream"


class ClientWork:
    """Takes jobs for one agent and reports them."""

    def __init__(self, connection: NodeConnection) -> None:
        self._connection = connection

    async def take(
        self,
        agent: str | None = None,
        kinds: Sequence[str] = ("*",),
        *,
        count: int = 1,
        wait: Duration = 0.0,
        lease: Duration | None = None,
        capacity: int | None = None,
        tags: Iterable[str] = (),
    ) -> list[TakenJob]:
        """Take ready jobs of these kinds; wait up to `wait` seconds for one. Returns none after that.

        `capacity`: how many jobs the agent wants to hold at most in total. `tags`: the tags that it has.
        """
        if agent not in (None, self._connection.agent):
            raise BadValue(
                f"jobs are taken for {self._connection.agent}, the agent of this client, got {agent!r}"
            )
        waiting = LongWait(seconds_of("wait", wait))
        return await self._take(_wanted(kinds, count, lease, capacity, tags), waiting)

    async def _take(self, wanted: Mapping[str, Any], waiting: LongWait) -> list[TakenJob]:
        while True:
            step = waiting.next_step()
            found = await self._connection.post(
                "/v1/jobs/take", {**wanted, "wait": step}, timeout_s=step + CALL_S
            )
            if found or waiting.is_last:
                return [taken_of(each) for each in found]

    # --- while it is held ------------------------------------------------------------------------

    async def renew(self, job: JobName, claim_token: int, *, lease: Duration | None = None) -> TakenJob:
        """Renew the lease of a taken job. Of the job, only its id and its claim token are returned."""
        body = {"claim_token": claim_token, "lease": seconds_or_none("lease", lease)}
        found = await self._connection.post(path_of(job, "/renew"), body)
        agent, lease_ms, until_ms = self._connection.agent, found["lease_ms"], found["lease_until_ms"]
        return TakenJob(job_of(found), agent, lease_ms, until_ms, core={})

    async def progress(
        self, job: JobName, claim_token: int, fraction: float | None = None, message: str | None = None
    ) -> None:
        """Report the progress of a taken job."""
        body = {"claim_token": claim_token, "fraction": fraction, "message": message}
        await self._connection.post(path_of(job, "/progress"), body)

    async def checkpoint(self, job: JobName, claim_token: int, value: Any) -> None:
        """Save a value from which another attempt may resume."""
        await self._connection.post(
            path_of(job, "/progress"), {"claim_token": claim_token, "checkpoint": value}
        )

    async def log(self, job: JobName, claim_token: int, text: str) -> None:
        """Add text to the log of a taken job."""
        await self._connection.post(path_of(job, "/log"), {"claim_token": claim_token, "text": text})

    async def keep(self, job: JobName, claim_token: int, name: str, body: bytes, type: str = _BYTES) -> None:  # noqa: A002
        """Store an artifact of a taken job; one of the same name is replaced."""
        content = base64.b64encode(body).decode()
        given = {"claim_token": claim_token, "name": name, "type": type, "base64": content}
        await self._connection.post(path_of(job, "/artifacts"), given)

    async def keep_file(
        self,
        job: JobName,
        claim_token: int,
        name: str,
        path: Path,
        type: str = _BYTES,  # noqa: A002
    ) -> None:
        """Store a file as an artifact of a taken job. Raises `BadValue` if it can't be read."""
        try:
            body = await asyncio.to_thread(path.read_bytes)
        except OSError as error:
            raise BadValue(f"{path} can't be read: {error.strerror}", hint="pass a readable file") from None
        await self.keep(job, claim_token, name, body, type)

    # --- reporting -------------------------------------------------------------------------------

    async def report(self, job: JobName, claim_token: int, report: Report) -> Job:
        """Report how the attempt went. Raises `StaleClaim` if the claim is over."""
        return job_of(await self._connection.post(path_of(job, "/report"), _reported(claim_token, report)))

    async def report_and_take(
        self,
        job: JobName,
        claim_token: int,
        report: Report,
        kinds: Sequence[str] = ("*",),
        *,
        count: int = 1,
        wait: Duration = 0.0,
        lease: Duration | None = None,
        capacity: int | None = None,
        tags: Iterable[str] = (),
    ) -> list[TakenJob]:
        """Report how the attempt went, and take jobs in the same request, which costs less than two.

        The report stands, even if taking fails.
        """
        waiting, wanted = LongWait(seconds_of("wait", wait)), _wanted(kinds, count, lease, capacity, tags)
        step = waiting.next_step()
        body = {**_reported(claim_token, report), "take": {**wanted, "wait": step}}
        answer = await self._connection.post(path_of(job, "/next"), body, timeout_s=step + CALL_S)
        if answer["taken"] or waiting.is_last:
            return [taken_of(each) for each in answer["taken"]]
        return await self._take(wanted, waiting)

    async def succeed(
        self,
        job: JobName,
        claim_token: int,
        result: Any = None,
        *,
        exit_code: int | None = None,
        usage: Mapping[str, Any] | None = None,
    ) -> Job:
        """Report a success, with a JSON value as its result."""
        fields = {"result": result, "exit_code": exit_code, "usage": usage}
        return await self._report(job, claim_token, "succeeded", **fields)

    async def fail(
        self,
        job: JobName,
        claim_token: int,
        reason: str,
        *,
        retry: bool = True,
        exit_code: int | None = None,
        usage: Mapping[str, Any] | None = None,
    ) -> Job:
        """Report a failure; with `retry`, the job has another attempt if it has any left."""
        fields = {"reason": reason, "exit_code": exit_code, "usage": usage}
        return await self._report(job, claim_token, "failed", retry=retry, **fields)

    async def yield_back(
        self, job: JobName, claim_token: int, reason: str | None = None, *, delay: Duration | None = None
    ) -> Job:
        """Return the job to the queue, without counting a failure."""
        delay_s = seconds_or_none("delay", delay)
        return await self._report(job, claim_token, "yielded", reason=reason, delay=delay_s)

    async def ask(self, job: JobName, claim_token: int, question: Question | str) -> Job:
        """End the attempt with a question; the job is taken again with the answer."""
        asked = (Question(question) if isinstance(question, str) else question).checked()
        return await self._report(job, claim_token, "needs_input", question=question_fields(asked))

    async def _report(self, job: JobName, claim_token: int, outcome: str, **fields: Any) -> Job:
        body = {"claim_token": claim_token, "outcome": str(outcome), **fields}
        return job_of(await self._connection.post(path_of(job, "/report"), body))


def _wanted(
    kinds: Sequence[str],
    count: int,
    lease: Duration | None,
    capacity: int | None,
    tags: Iterable[str],
) -> dict[str, Any]:
    """Return which jobs to take, as the API takes it, except how long to wait."""
    return {
        "kinds": list(kinds),
        "count": count,
        "lease": seconds_or_none("lease", lease),
        "capacity": capacity,
        "tags": [*tags],
    }


def _reported(claim_token: int, report: Report) -> dict[str, Any]:
    """Return a report as the API takes it."""
    fields: dict[str, Any] = {
        "claim_token": claim_token,
        "outcome": str(report.outcome),
        "reason": None if report.question is not None else report.reason,
        "result": report.result,
        "exit_code": report.exit_code,
        "retry": report.may_retry,
        "usage": report.usage.as_json() or None,
    }
    if report.question is not None:
        fields["question"] = question_fields(report.question)
    elif report.delay_ms is not None:
        fields["delay"] = report.delay_ms / 1_000
    return fields


def question_fields(question: Question) -> dict[str, Any]:
    """Return a question as the API takes it."""
    fields = {
        "text": question.text,
        "choices": list(question.choices),
        "schema": question.schema,
        "to": question.to,
        "expires": question.expires_s,
        "escalate_to": question.escalate_to,
        "escalate_after": question.escalate_s,
    }
    return {name: value for name, value in fields.items() if value is not None}
