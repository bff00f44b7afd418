"""Questions of jobs: an attempt asks, its job waits without a worker, and an answer lets it go on.

The answer is an op in the log. A job is given only an answer that its author signed, whatever the table says.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from vox_mesh.errors import MeshError, NotKnown, Refused
from vox_mesh.jobs.job_ends import JobEnds
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.json_text import read_json
from vox_mesh.model.jobs.claim_history import moved_jobs
from vox_mesh.model.jobs.question import ANSWER, ESCALATE, check_answer
from vox_mesh.model.jobs.question import AskedQuestion as AskedQuestion
from vox_mesh.model.jobs.records import YIELD, Job
from vox_mesh.model.jobs.steps.suspension import WAKE
from vox_mesh.model.messages.records import ROLE
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import READ_ERRORS
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.oplog.pages import EntryFilter, Pages
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.acting import current_agent, refuse_unless_own
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Script, Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_SQL: Final = named("job_questions")
_NOT_OPEN: Final = "question_not_open"
_MAX_BATCH: Final = 100

ALREADY_ANSWERED: Final = "already_answered"
"""The refusal of an answer to a question that is not open any more."""

Notify = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""Sends an agent a question."""


class JobQuestions:
    """Reads, answers and passes on the questions of jobs."""

    def __init__(
        self,
        store: Store,
        ends: JobEnds,
        trusted_keys: TrustedKeys,
        clock: MeshClock,
        node_id: Callable[[], str],
        permits: Permits,
    ) -> None:
        self._permits = permits
        self._store = store
        self._mesh = store.mesh_id
        self._ends = ends
        self._trusted_keys = trusted_keys
        self._clock = clock
        self._node_id = node_id
        self._pages = Pages(store)
        self.notify: Notify | None = None
        """How agents learn that they are asked."""

    async def of(self, job_id: str) -> AskedQuestion | None:
        """Return the last question of a job, or `None`."""
        rows = await self._store.read(_SQL["of_job"], (*self._mesh, job_id), fresh=True)
        return AskedQuestion._make(rows[0]) if rows else None

    async def open(self, agent: str | None = None, limit: int = _MAX_BATCH) -> list[AskedQuestion]:
        """Return the questions without an answer, the oldest first; of an agent, or all."""
        rows = await self._store.read(_SQL["open"], (*self._mesh, agent, limit))
        return [AskedQuestion._make(row) for row in rows]

    async def answer(
        self, job: Job, answer: Any, agent: str | None = None, *, question_id: str | None = None
    ) -> AskedQuestion:
        """Answer the open question of a job, which can be taken again from then on.

        With `question_id`, no other question is answered: the job may have asked another one meanwhile.
        Raises `NotKnown` if it has none, `BadValue` if the answer does not fit, and `Refused` if it was
        answered before or its time is over.
        """
        asked = await self.of(job.job_id)
        if asked is None:
            raise NotKnown(f"job {job.job_id} has asked nothing", hint="run `vox-mesh job questions`")
        if question_id not in (None, asked.question_id):
            raise _already_answered()
        if asked.asked_of is not None and not asked.asked_of.startswith(ROLE):
            refuse_unless_own(f"the question of job {job.job_id}", asked.asked_of)
        check_answer(asked.document, answer)
        by = agent or current_agent() or self._node_id()
        if asked.answered_by is None:
            await self._write_answer(asked, answer, by, job)
        written = await self._signed_answer(asked)
        if written is None or canonical(written["answer"]) != canonical(answer):
            raise _already_answered()
        return asked._replace(answered_by=written["by"])

    async def _write_answer(self, asked: AskedQuestion, answer: Any, by: str, job: Job) -> None:
        payload = {"job_id": asked.job_id, "kind": job.kind, "answer": answer, "by": by}
        values = (*self._mesh, asked.job_id, asked.question_id)
        # An answer that is refused in the log ends its job: so a missing grant is noticed before.
        self._permits.expect_grants(by)
        try:
            await self._permits.write_op(
                Op(ANSWER, canonical(payload), (job.last_op,)),
                Statement(_SQL["refuse_unless_open"], values, refusal=_NOT_OPEN),
                Statement(_SQL["answer"], (*values, by)),
                key=asked.question_id,
                agent=by,
            )
        except Refused as refused:
            if refused.reason != _NOT_OPEN:
                raise
            raise _already_answered() from None

    async def answer_to(self, job: Job) -> Mapping[str, Any] | None:
        """Return the op that answers the last question of a job, with its `answer`, or `None`."""
        asked = await self.of(job.job_id)
        return None if asked is None else await self._signed_answer(asked)

    async def is_closed(self, job: Job) -> bool:
        """Return whether the last question of a job was closed without an answer."""
        asked = await self.of(job.job_id)
        entry = None if asked is None else await self._ends.find_op(asked.question_id)
        return entry is not None and entry.kind == WAKE

    async def _signed_answer(self, asked: AskedQuestion) -> Mapping[str, Any] | None:
        entry = await self._ends.find_op(asked.question_id)
        if entry is None or entry.kind != ANSWER:
            return None
        payload: Mapping[str, Any] = read_json(entry.payload)
        is_of_job = payload.get("job_id") == asked.job_id
        return payload if is_of_job and not await self._has_asked_since(asked.job_id, entry) else None

    async def _has_asked_since(self, job_id: str, answer: LogEntry) -> bool:
        """Return whether a job has asked again since an answer: the table may name an earlier question."""
        wanted = EntryFilter(kind=YIELD, job_id=job_id)
        later = await self._pages.after(answer.id, wanted=wanted, limit=_MAX_BATCH)
        if len(later) == _MAX_BATCH:
            return True  # no honest job is returned so often before it is given its answer
        for entry in later:
            if not _asks(entry, job_id) or not await self._trusted_keys.is_authentic(entry):
                continue
            has_effect = entry.accepted == 1 and (entry.result is None or job_id in moved_jobs(entry.result))
            if has_effect or not await self._trusted_keys.is_sealed(entry):
                return True
        return False

    # --- asking, and asking others ---------------------------------------------------------------

    async def announce(self, job_id: str) -> None:
        """Send the open question of a job to the agent that is asked; it is in the list in any case."""
        if self.notify is None:
            return
        try:
            asked = await self.of(job_id)
            if asked is not None and asked.asked_of is not None:
                await self.notify(
                    asked.asked_of, {**asked.document, "job_id": job_id, "asked_by": asked.asked_by}
                )
        except MeshError as error:
            _log.warning("question not sent: job_id=%s: %s", job_id, error.line)

    async def pass_on_due(self) -> list[str]:
        """Pass on the questions whose time to be escalated has come. Return the jobs whose time is over."""
        now_ms = self._clock.now_ms
        rows = await self._store.read(_SQL["due"], (*self._mesh, now_ms, _MAX_BATCH))
        due = [AskedQuestion._make(row) for row in rows]
        expired = [each.job_id for each in due if each.expires_ms is not None and each.expires_ms < now_ms]
        for each in due:
            if each.job_id not in expired:
                await self._escalate(each)
        return expired

    async def _escalate(self, asked: AskedQuestion) -> None:
        values = (*self._mesh, asked.job_id, asked.question_id)
        payload = {"job_id": asked.job_id, "question_id": asked.question_id, "to": asked.escalate_to}
        script = Script(
            Statement(_SQL["refuse_unless_due"], values, refusal=_NOT_OPEN),
            Statement(_SQL["escalate"], values),
            op=Op(ESCALATE, canonical(payload)),
        )
        try:
            await self._store.write(script)
        except Refused:
            return  # another node was first, or it was answered
        await self.announce(asked.job_id)

    async def forget(self) -> None:
        """Remove the questions of jobs that have ended: the log has them."""
        if (await self._store.read(_SQL["is_any_over"], self._mesh)).value:
            await self._store.write(Script(Statement(_SQL["forget"], self._mesh)))


def _asks(entry: LogEntry, job_id: str) -> bool:
    """Return whether an op returns a job to the queue with a question."""
    try:
        items: Any = read_json(entry.payload)["jobs"]
        return any(each["job_id"] == job_id and "question" in each for each in items)
    except READ_ERRORS:
        return False


def _already_answered() -> Refused:
    error = Refused(ALREADY_ANSWERED, statement=0)
    error.hint = "it was answered before, or its time is over: see `vox-mesh job show`"
    return error
