"""`vox-mesh job ask`, `questions` and `answer`: what a job needs to know before it can go on."""

from __future__ import annotations

from typing import Any

import click

from vox_mesh.cli.jobs.job_options import job_argument
from vox_mesh.cli.jobs.job_output import line
from vox_mesh.cli.jobs.work import parse_json, run_work, token_option
from vox_mesh.cli.support.options import seconds
from vox_mesh.cli.support.output import Record, json_option, show_one, show_several
from vox_mesh.cli.support.session import AgentMesh, run_command, start_quickly
from vox_mesh.errors import BadValue
from vox_mesh.jobs.questions import AskedQuestion
from vox_mesh.jobs.work.reports import needs_input
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.json_text import read_json
from vox_mesh.model.jobs.question import Question
from vox_mesh.model.jobs.records import Job
from vox_mesh.views.jobs import JobView
from vox_mesh.views.work import AskedView


@click.command()
@job_argument
@click.argument("question")
@token_option
@click.option("--choice", "choices", multiple=True, help="Possible answer; may be repeated.")
@click.option("--schema", metavar="JSON", help="JSON schema of the answer.")
@click.option("--to", metavar="AGENT", help="Agent that is asked, by a message.")
@click.option("--expires", type=seconds, metavar="DURATION", help="Time until the job is aborted.")
@click.option("--escalate-to", metavar="AGENT", help="Agent that is asked next.")
@click.option("--escalate-after", type=seconds, metavar="DURATION", help="Time until the next one is asked.")
@json_option
def ask(
    reference: str,
    question: str,
    token: int,
    choices: tuple[str, ...],
    schema: str | None,
    to: str | None,
    expires: float | None,
    escalate_to: str | None,
    escalate_after: float | None,
    as_json: bool,
) -> None:
    """End an attempt at a taken job with a question.

    The job waits without a worker. When the question is answered, it can be taken again, with the answer.

    \b
    Example:
      vox-mesh job ask 298aaf4c "Which branch?" --choice main --choice next --token 1760000000001
    """
    parsed = None if schema is None else parse_json(schema, "--schema")
    asked = Question(question, choices, parsed, to, expires, escalate_to, escalate_after)

    async def work(mesh: AgentMesh) -> Job:
        return await mesh.work.report(reference, token, needs_input(asked))

    job = run_work(start_quickly("job ask", through_node=True), work)
    show_one(vars(JobView.of(job)) if as_json else line(job), as_json=as_json)


@click.command()
@click.option("--to", metavar="AGENT", help="Only those of this agent.")
@json_option
def questions(to: str | None, as_json: bool) -> None:
    """List the questions of jobs that wait for an answer.

    \b
    Example:
      vox-mesh job questions --to lead
    """

    async def work(mesh: Mesh) -> list[AskedQuestion]:
        return await mesh.jobs.questions.open(to)

    found = [vars(AskedView.of(each)) for each in run_command("job questions", work)]
    if not as_json:
        found = [_line(each) for each in found]
    show_several(found, as_json=as_json)


@click.command()
@job_argument
@click.argument("answer")
@click.option("--agent", help="Agent that answers.", show_default="VOX_AGENT_ID, or the node")
@json_option
def answer(reference: str, answer: str, agent: str | None, as_json: bool) -> None:
    """Answer the question of a job, which goes on with it.

    ANSWER is JSON; what is not JSON is taken as text. Ends with 1 if the question was answered before.

    \b
    Example:
      vox-mesh job answer 298aaf4c next
    """
    settings = start_quickly("job answer", through_node=True)
    by = agent or settings.agent_id

    async def work(mesh: AgentMesh) -> AskedQuestion:
        if not isinstance(mesh, Mesh):
            return await mesh.jobs.answer(reference, _value_of(answer))
        return await mesh.jobs.questions.answer(await mesh.jobs.find(reference), _value_of(answer), by)

    answered = run_work(settings, work, by)
    record = vars(AskedView.of(answered))
    show_one(record if as_json else _line(record), as_json=as_json)


def _line(asked: Record) -> dict[str, Any]:
    """Return what a person reads of a question."""
    names = ("job_id", "asked_by", "asked_of", "text", "answered_by")
    return {**{name: asked[name] for name in names}, "choices": ", ".join(asked["choices"])}


def _value_of(text: str) -> Any:
    try:
        return read_json(text)
    except BadValue:
        return text
