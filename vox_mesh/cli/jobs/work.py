"""`vox-mesh job take`, `renew` and `report`: an agent's work on jobs, one step at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from vox_mesh.cli.jobs.job_options import job_argument, tag_option
from vox_mesh.cli.jobs.job_output import line
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.options import Function, acting_agent, seconds
from vox_mesh.cli.support.output import json_option, show_one, show_several
from vox_mesh.cli.support.session import AgentCommand, AgentMesh, Result, run_as_agent, start_quickly
from vox_mesh.errors import BadValue
from vox_mesh.jobs.work.reports import Report, ReportedOutcome, failed, succeeded, yielded
from vox_mesh.jobs.work.work import TakenJob
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.json_text import read_json
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.rhythm.tokens import MAX_TOKENS
from vox_mesh.model.rhythm.usage import Usage
from vox_mesh.settings import Settings
from vox_mesh.views.jobs import JobView
from vox_mesh.views.work import LeaseView, TakenView

CLAIM_TOKEN = "VOX_JOB_CLAIM_TOKEN"  # noqa: S105 - the name of a variable

token_option = click.option(
    "--token", type=int, required=True, envvar=CLAIM_TOKEN, show_envvar=True, help="Claim token of the job."
)
_lease_option = click.option(
    "--lease",
    type=seconds,
    metavar="DURATION",
    help="Time until the job goes back unless it is renewed.",
    show_default="that of the kind, or 60s",
)


_TOKENS: Final = click.IntRange(0, MAX_TOKENS)
_OUTCOMES: Final = ("succeeded", "failed", "yielded")
"""What `job report` reports; a question is asked with `job ask`."""


def take_options(wait: str) -> Callable[[Function], Function]:
    """Return the options of a command that takes jobs; `wait` is how long it waits by default."""

    def add(function: Function) -> Function:
        for option in (
            _lease_option,
            click.option(
                "--wait",
                type=seconds,
                metavar="DURATION",
                default=wait,
                show_default=True,
                help="Time to wait for a job.",
            ),
            tag_option("Tag that the agent has, for jobs that need it; repeatable."),
            click.option("--agent", help="Agent that takes the job.", show_default="VOX_AGENT_ID"),
        ):
            function = option(function)
        return function

    return add


def run_work(settings: Settings, work: AgentCommand[Result], agent: str | None = None) -> Result:
    """Run the work of an agent on jobs, whose limits count in the beats of the mesh."""

    async def run(mesh: AgentMesh) -> Result:
        if isinstance(mesh, Mesh):
            await mesh.rhythm.refresh()
        return await work(mesh)

    return asyncio.run(run_as_agent(settings, agent, run))


@click.command()
@click.argument("kinds", nargs=-1, metavar="[KIND...]")
@take_options("0s")
@click.option("--count", type=int, default=1, show_default=True, help="Maximum number of jobs.")
@click.option(
    "--capacity",
    type=int,
    help="Maximum number of jobs that the agent holds in total.",
    show_default="no limit",
)
@json_option
def take(
    kinds: tuple[str, ...],
    agent: str | None,
    wait: float,
    lease: float | None,
    tags: tuple[str, ...],
    count: int,
    capacity: int | None,
    as_json: bool,
) -> int:
    """Take ready jobs for an agent, of these kinds or all.

    KIND is a name, or a prefix such as 'build.*'. Commands are taken only if KIND is exec. The job goes back
    to the queue after its lease, unless the agent renews it with `job renew` or ends it with `job report`;
    both need the claim token. Ends with 1 if there is no job.

    \b
    Example:
      vox-mesh job take 'build.*' --agent coder --wait 30s --json
    """
    settings = start_quickly("job take", through_node=True)
    name = acting_agent(agent, settings, "--agent")

    async def work(mesh: AgentMesh) -> list[TakenJob]:
        return await mesh.work.take(
            name, kinds or ("*",), count=count, wait=wait, lease=lease, capacity=capacity, tags=tags
        )

    taken = run_work(settings, work, name)
    views = [vars(TakenView.of(each)) for each in taken]
    if not as_json:
        names = ("job_id", "kind", "claim_token", "lease_ms", "attempt", "payload")
        views = [{name: view[name] for name in names} for view in views]
    show_several(views, as_json=as_json)
    return ExitCode.DONE if taken else ExitCode.NO


@click.command()
@job_argument
@token_option
@_lease_option
@json_option
def renew(reference: str, token: int, lease: float | None, as_json: bool) -> None:
    """Renew the lease of a job that an agent has taken.

    Ends with 1 if the claim is over: stop working on the job then.

    \b
    Example:
      vox-mesh job renew 298aaf4c --token 1760000000001
    """

    async def work(mesh: AgentMesh) -> TakenJob:
        return await mesh.work.renew(reference, token, lease=lease)

    renewed = run_work(start_quickly("job renew", through_node=True), work)
    show_one(vars(LeaseView.of(renewed)), as_json=as_json)


@click.command()
@job_argument
@click.argument("outcome", type=click.Choice(_OUTCOMES))
@token_option
@click.option("--reason", help="Reason of a failure, which needs one, or of yielding the job.")
@click.option("--result", metavar="JSON", help="Result of a success.")
@click.option("--artifact", "artifacts", multiple=True, metavar="NAME=FILE", help="File to keep.")
@click.option("--exit-code", type=int, help="Exit code of the command that did the work.")
@click.option("--no-retry", is_flag=True, help="Fail the job even if it has attempts left.")
@click.option("--delay", type=seconds, metavar="DURATION", help="Time until a yielded job can be taken.")
@click.option("--input-tokens", type=_TOKENS, metavar="N", help="Tokens that a model has read.")
@click.option("--output-tokens", type=_TOKENS, metavar="N", help="Tokens that it has written.")
@click.option("--model", help="Model whose tokens they are; tokens need one.")
@json_option
def report(
    reference: str,
    outcome: str,
    token: int,
    reason: str | None,
    result: str | None,
    artifacts: tuple[str, ...],
    exit_code: int | None,
    no_retry: bool,
    delay: float | None,
    input_tokens: int | None,
    output_tokens: int | None,
    model: str | None,
    as_json: bool,
) -> None:
    """Report how an attempt at a taken job went.

    A failed job is retried if it has attempts left. A late report, after the lease, is refused with 1. The
    same report may be sent again. Tokens are charged to the budgets of the agent and the account.

    \b
    Example:
      vox-mesh job report 298aaf4c succeeded --token 1760000000001 --result '{"files": 3}'
    """
    reported = _report(
        ReportedOutcome(outcome), reason, result, exit_code, may_retry=not no_retry, delay=delay
    )
    if model is None and (input_tokens or output_tokens):
        raise click.UsageError("--input-tokens and --output-tokens need --model", click.get_current_context())
    tokens = {"input_tokens": input_tokens, "output_tokens": output_tokens, "model": model}
    usage = Usage.of({name: value for name, value in tokens.items() if value is not None})
    reported = reported._replace(usage=usage)
    files = [_named_file(each) for each in artifacts]

    async def work(mesh: AgentMesh) -> Job:
        for name, path in files:
            await mesh.work.keep_file(reference, token, name, path)
        return await mesh.work.report(reference, token, reported)

    job = run_work(start_quickly("job report", through_node=True), work)
    show_one(vars(JobView.of(job)) if as_json else line(job), as_json=as_json)


def _report(
    outcome: ReportedOutcome,
    reason: str | None,
    result: str | None,
    exit_code: int | None,
    *,
    may_retry: bool,
    delay: float | None,
) -> Report:
    if result is not None and outcome is not ReportedOutcome.SUCCEEDED:
        raise click.UsageError("--result is that of a success")
    if outcome is ReportedOutcome.SUCCEEDED:
        return succeeded(None if result is None else parse_json(result, "--result"), exit_code=exit_code)
    if outcome is ReportedOutcome.YIELDED:
        return yielded(delay=delay) if reason is None else yielded(reason, delay)
    if reason is None:
        raise click.UsageError("a failure needs --reason")
    return failed(reason, retry=may_retry, exit_code=exit_code)


def parse_json(text: str, option: str) -> Any:
    """Return the JSON value of an option. Raises `BadParameter` if it is none."""
    try:
        return read_json(text)
    except BadValue as error:
        raise click.BadParameter(f"must be JSON: {error}", param_hint=option) from None


def _named_file(text: str) -> tuple[str, Path]:
    name, separator, path = text.partition("=")
    if not (name and separator and path):
        raise click.BadParameter(f"must be NAME=FILE, got {text!r}", param_hint="--artifact")
    return name, Path(path)
