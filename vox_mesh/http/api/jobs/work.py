"""The work of agents: taking jobs, renewing their leases, and reporting what was done."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, WithJsonSchema, model_validator

from vox_mesh.errors import BadValue
from vox_mesh.http.admission import Load
from vox_mesh.http.api.jobs.job_actions import Reason
from vox_mesh.http.api.jobs.jobs import JobName
from vox_mesh.http.api.operations import CALL_S, MAX_WAIT_S, Operations, RequestModel, Seconds, Text, Wait
from vox_mesh.http.principals.needs import NOTHING, reads_of_others, receives, writes
from vox_mesh.http.principals.own_names import OwnAgent
from vox_mesh.jobs.work.reports import MAX_DELAY_S, Report, failed, needs_input, succeeded, yielded
from vox_mesh.jobs.work.requests import MAX_REQUEST_ID
from vox_mesh.jobs.work.wanted import MAX_AT_ONCE, MAX_CAPACITY, MAX_KINDS, MAX_LEASE_S, MIN_LEASE_S
from vox_mesh.model.grants.capability import TAKE
from vox_mesh.model.jobs.bundle import base64_content
from vox_mesh.model.jobs.manifest_fields import Tag
from vox_mesh.model.jobs.question import ANSWER, MAX_CHOICES, MAX_TEXT, Question
from vox_mesh.model.jobs.records import MAX_OWN_TAGS
from vox_mesh.model.messages.records import inbox_names
from vox_mesh.model.rhythm.usage import Usage
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.acting import current_agent
from vox_mesh.views.jobs import JobView
from vox_mesh.views.messages import MessageView
from vox_mesh.views.work import AskedView, KeptView, LeaseView, TakenView

WORK: Final = Operations("jobs")

Token = Annotated[int, Field(ge=1, lt=2**53)]
Lease = Annotated[
    Seconds,
    Field(ge=MIN_LEASE_S, le=MAX_LEASE_S),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": MIN_LEASE_S, "maximum": MAX_LEASE_S},
                {"type": "string", "pattern": "^([1-9][0-9]{1,3}s|[1-9][0-9]{0,2}m|[1-9]h|1[0-9]h)$"},
            ],
            "examples": ["5m", 300],
        }
    ),
]

UsageFields = Annotated[
    dict[str, str | float | dict[str, float]],
    Field(
        max_length=16,
        description="Resources; `input_tokens` and `output_tokens` with their `model`, or as maps of models.",
        examples=[{"input_tokens": 900, "output_tokens": 80, "model": "claude-sonnet-4"}],
    ),
]

_WAIT_TIMEOUT_S: Final = MAX_WAIT_S + CALL_S
_MAX_LOG: Final = 256 * 1024
_DEBOUNCE_S: Final = 0.05
_MAX_MESSAGES: Final = 100


# --- taking --------------------------------------------------------------------------------------


class TakeRequest(RequestModel):
    """The kinds of jobs, or prefixes such as `build.*`; how many, how long to wait, and the lease.

    With `capacity`, it takes no more than the agent may hold in total. A job with tags is given only to an
    agent that has them all in `tags`. A request that is sent again with its `request_id`, because its answer
    was lost, gets the same jobs.
    """

    kinds: Annotated[list[Text], Field(min_length=1, max_length=MAX_KINDS, default_factory=lambda: ["*"])]
    count: Annotated[int, Field(ge=1, le=MAX_AT_ONCE)] = 1
    wait: Wait = 0.0
    lease: Lease | None = None
    capacity: Annotated[int, Field(ge=1, le=MAX_CAPACITY)] | None = None
    tags: Annotated[list[Tag], Field(max_length=MAX_OWN_TAGS, default_factory=list)]
    request_id: Annotated[str, Field(min_length=1, max_length=MAX_REQUEST_ID)] | None = None

    @property
    def item_count(self) -> int:
        """The maximum number of jobs that it takes."""
        return self.count

    @property
    def waits_s(self) -> float:
        """How long it may wait."""
        return self.wait


async def _give_back(mesh: MeshServices, taken: list[TakenView]) -> None:
    if taken:
        jobs = {each.job_id: each.claim_token for each in taken}
        await mesh.work.return_unreceived(taken[0].agent, jobs)


@WORK.post("/v1/jobs/take", needs=TAKE, takes_s=_WAIT_TIMEOUT_S, load=Load.TAKE, undo=_give_back)
async def take_jobs(mesh: MeshServices, body: TakeRequest) -> list[TakenView]:
    """Take ready jobs for the agent in the header `Vox-Agent`, and wait for one if there is none."""
    return await _take(mesh, _named_agent(), body)


def _named_agent() -> str:
    agent = current_agent()
    if agent is None:
        raise BadValue("no agent given", hint="send its name in the header Vox-Agent")
    return agent


async def _take(mesh: MeshServices, agent: str, wanted: TakeRequest) -> list[TakenView]:
    taken = await mesh.work.take(
        agent,
        wanted.kinds,
        count=wanted.count,
        wait=wanted.wait,
        lease=wanted.lease,
        capacity=wanted.capacity,
        tags=wanted.tags,
        request_id=wanted.request_id,
    )
    return [TakenView.of(each) for each in taken]


# --- while it is held ----------------------------------------------------------------------------


class ClaimedRequest(RequestModel):
    """The claim token of a taken job."""

    claim_token: Token


class RenewTakenRequest(ClaimedRequest):
    """The claim token, and the new lease, by default as long as the first one."""

    lease: Lease | None = None


@WORK.post("/v1/jobs/{job}/renew", needs=TAKE)
async def renew_job(mesh: MeshServices, job: JobName, body: RenewTakenRequest) -> LeaseView:
    """Renew the lease of a taken job."""
    return LeaseView.of(await mesh.work.renew(job, body.claim_token, lease=body.lease))


class ProgressRequest(ClaimedRequest):
    """The completed fraction and a message, and a checkpoint from which another attempt may resume.

    `usage` has the tokens that were used since the last report; they are charged at once.
    """

    fraction: Annotated[float, Field(ge=0, le=1)] | None = None
    message: Annotated[str, Field(max_length=1_024)] | None = None
    checkpoint: Any = None
    usage: UsageFields | None = None


@dataclass(frozen=True)
class NotedView:
    """The job whose progress or log was written."""

    job_id: str


@WORK.post("/v1/jobs/{job}/progress", needs=NOTHING)
async def report_job_progress(mesh: MeshServices, job: JobName, body: ProgressRequest) -> NotedView:
    """Report the progress of a taken job, and save a checkpoint."""
    found = await mesh.jobs.find(job)
    usage = body.usage and Usage.of(body.usage)
    await mesh.work.progress(found, body.claim_token, body.fraction, body.message, usage=usage)
    if body.checkpoint is not None:
        await mesh.work.checkpoint(found, body.claim_token, body.checkpoint)
    return NotedView(found.job_id)


class LogRequest(ClaimedRequest):
    """Text for the log of a job."""

    text: Annotated[str, Field(min_length=1, max_length=_MAX_LOG)]


@WORK.post("/v1/jobs/{job}/log", needs=NOTHING)
async def log_job(mesh: MeshServices, job: JobName, body: LogRequest) -> NotedView:
    """Add text to the log of a taken job."""
    found = await mesh.jobs.find(job)
    await mesh.work.log(found, body.claim_token, body.text)
    return NotedView(found.job_id)


class ArtifactRequest(ClaimedRequest):
    """An artifact, as text or in base64."""

    name: Annotated[str, Field(min_length=1, max_length=255)]
    type: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    text: str | None = None
    base64: str | None = None

    @model_validator(mode="after")
    def _has_one_content(self) -> Self:
        if (self.text is None) == (self.base64 is None):
            raise ValueError("either text or base64 must be given")
        return self

    @property
    def content(self) -> bytes:
        """The content. Raises `BadValue` if it is not base64."""
        if self.text is not None:
            return self.text.encode(errors="replace")
        content = base64_content(self.base64)
        if content is None:
            raise BadValue("base64 must be the content in base64, with padding and without line breaks")
        return content

    @property
    def media_type(self) -> str:
        """The type, by default that of text or bytes."""
        return self.type or ("application/octet-stream" if self.text is None else "text/plain")


@WORK.post("/v1/jobs/{job}/artifacts", needs=NOTHING)
async def keep_artifact(mesh: MeshServices, job: JobName, body: ArtifactRequest) -> KeptView:
    """Store an artifact of a taken job; one of the same name is replaced."""
    artifact = await mesh.work.keep(job, body.claim_token, body.name, body.content, body.media_type)
    return KeptView.of(artifact)


# --- reporting -----------------------------------------------------------------------------------


class QuestionFields(RequestModel):
    """A question with choices, a JSON schema or neither, whom it is asked of, and until when."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
    choices: Annotated[list[Text], Field(max_length=MAX_CHOICES, default_factory=list)]
    answer_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    to: Text | None = None
    expires: Seconds | None = None
    escalate_to: Text | None = None
    escalate_after: Seconds | None = None

    @property
    def question(self) -> Question:
        """The question."""
        asked_of = (self.to, self.expires, self.escalate_to, self.escalate_after)
        return Question(self.text, self.choices, self.answer_schema, *asked_of)


class ReportRequest(ClaimedRequest):
    """How the attempt went. A failure needs a reason; `usage` is charged to the budgets of the job.

    With `needs_input` and a question, the job waits for its answer.
    """

    outcome: Literal["succeeded", "failed", "yielded", "needs_input"]
    question: QuestionFields | None = None
    reason: Reason | None = None
    result: Any = None
    exit_code: Annotated[int, Field(gt=-(2**31), lt=2**31)] | None = None
    retry: bool = True
    delay: Annotated[Seconds, Field(le=MAX_DELAY_S)] | None = None
    usage: UsageFields | None = None

    @property
    def report(self) -> Report:
        """The report. Raises `BadValue` if its fields do not fit together."""
        usage = None if self.usage is None else Usage.of(self.usage)
        if (self.outcome == "needs_input") != (self.question is not None):
            raise BadValue("a question must be given with needs_input, and only then")
        if self.question is not None:
            return needs_input(self.question.question, usage=usage)
        if self.outcome == "succeeded":
            return succeeded(self.result, exit_code=self.exit_code, usage=usage)
        if self.outcome == "failed":
            reason = self.reason or ""
            return failed(reason, retry=self.retry, exit_code=self.exit_code, usage=usage)
        if self.reason is None:
            return yielded(delay=self.delay, usage=usage)
        return yielded(self.reason, self.delay, usage=usage)


@WORK.post("/v1/jobs/{job}/report", needs=NOTHING)
async def report_job(mesh: MeshServices, job: JobName, body: ReportRequest) -> JobView:
    """Report how an attempt went; a late report is refused, a repeated one is answered again."""
    return JobView.of(await mesh.work.report(job, body.claim_token, body.report))


class NextRequest(ReportRequest):
    """How the attempt went, and which jobs to take then, as in a request of its own."""

    take: TakeRequest

    @property
    def item_count(self) -> int:
        """The maximum number of jobs that it takes."""
        return self.take.item_count

    @property
    def waits_s(self) -> float:
        """How long it may wait."""
        return self.take.waits_s


@dataclass(frozen=True)
class NextView:
    """The reported job and its state, and the jobs that were taken then."""

    job_id: str
    state: str
    taken: list[TakenView]


async def _give_back_next(mesh: MeshServices, answer: NextView) -> None:
    await _give_back(mesh, answer.taken)


@WORK.post("/v1/jobs/{job}/next", needs=TAKE, takes_s=_WAIT_TIMEOUT_S, load=Load.TAKE, undo=_give_back_next)
async def report_and_take(mesh: MeshServices, job: JobName, body: NextRequest) -> NextView:
    """Report how an attempt went, and take jobs; the report stands, even if taking fails."""
    agent = _named_agent()
    reported = await mesh.work.report(job, body.claim_token, body.report)
    return NextView(reported.job_id, reported.state, await _take(mesh, agent, body.take))


# --- questions -----------------------------------------------------------------------------------


class QuestionsQuery(RequestModel):
    """The agent that is asked; without one, all questions."""

    to: Text | None = None


@WORK.get("/v1/jobs/questions", needs=reads_of_others("to", "query"))
async def list_questions(mesh: MeshServices, query: QuestionsQuery) -> list[AskedView]:
    """List the questions of jobs that wait for an answer, the oldest first."""
    return [AskedView.of(each) for each in await mesh.jobs.questions.open(query.to)]


class JobAnswerRequest(RequestModel):
    """The answer to the question of a job, a JSON value; with `question_id`, to this one only."""

    answer: Any
    question_id: Text | None = None


@WORK.post("/v1/jobs/{job}/answer", needs=writes(ANSWER))
async def answer_question(mesh: MeshServices, job: JobName, body: JobAnswerRequest) -> AskedView:
    """Answer the question of a job, which can be taken again with the answer."""
    found = await mesh.jobs.find(job)
    asked = await mesh.jobs.questions.answer(found, body.answer, question_id=body.question_id)
    return AskedView.of(asked)


# --- messages ------------------------------------------------------------------------------------


class InboxWaitQuery(RequestModel):
    """How long to wait, by default not at all, and the roles of the agent, separated by commas."""

    timeout: Wait = 0.0
    roles: Text | None = None

    @property
    def waits_s(self) -> float:
        """How long it may wait."""
        return self.timeout


@WORK.get("/v1/inbox/{agent}/wait", needs=receives("query"), takes_s=_WAIT_TIMEOUT_S, load=Load.WAIT)
async def wait_for_messages(mesh: MeshServices, agent: OwnAgent, query: InboxWaitQuery) -> list[MessageView]:
    """Wait until an agent has messages, or for `timeout`; return the first ones without claiming them."""
    names = inbox_names(agent, query.roles.split(",") if query.roles else ())
    with suppress(TimeoutError):
        async with asyncio.timeout(query.timeout):
            async for turn in mesh.store.changes(debounce_s=_DEBOUNCE_S):
                with turn.retry_if_unavailable():
                    if found := await mesh.messages.queries.peek(names, after=0, limit=_MAX_MESSAGES):
                        return [MessageView.of(mesh, each) for each in found]
    return []
