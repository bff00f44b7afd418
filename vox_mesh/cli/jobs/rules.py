"""`vox-mesh rule`: jobs that are scheduled when ops are logged."""

from __future__ import annotations

from typing import Any

import click

from vox_mesh.cli.jobs.job_options import (
    JobSource,
    binding_options,
    job_options,
    json_option_value,
    manifest_hint,
)
from vox_mesh.cli.jobs.job_output import short_id, template_text
from vox_mesh.cli.support.options import TrailingCommand
from vox_mesh.cli.support.output import CommandGroup, Record, json_option, show_one, show_several
from vox_mesh.cli.support.session import run_command
from vox_mesh.jobs.scheduling.rules import Rule
from vox_mesh.views.jobs import RemovedRuleView, RuleView


@click.group(cls=CommandGroup, no_args_is_help=False)
def rule() -> None:
    """Add, list and remove rules: jobs for logged ops.

    Each op that fires a rule has one job scheduled, by any node.
    """


@rule.command(cls=TrailingCommand)
@click.argument("name")
@click.argument("op_kind", metavar="OP-KIND")
@job_options
@binding_options
@click.option("--fields", metavar="JSON", help="Payload fields that the op must have, with their values.")
@json_option
def add(
    name: str,
    op_kind: str,
    fields: str | None,
    at: str | None,
    during: str | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Schedule a job for each op of a kind that is logged.

    The rule fires for the ops from now on, at most 60 times a minute; further ops wait. The job is in a file,
    a kind for a handler, or a command after `--`. A handler finds the op in the field `op` of its payload.
    Adding an identical rule again changes nothing; a different rule of the same name is refused.

    \b
    Example:
      vox-mesh rule add locks-broken BreakLock --kind notes.report
    """
    wanted = {} if fields is None else json_option_value("--fields", fields)
    if not isinstance(wanted, dict):
        raise click.BadParameter("must be a JSON object", param_hint="--fields")
    with manifest_hint("rule"):
        manifest = JobSource(**asked).single_manifest("rule", at=at, during=during)
        added = run_command("rule add", lambda mesh: mesh.rules.add(name, op_kind, manifest, wanted))
    show_one(vars(RuleView.of(added)) if as_json else _line(added), as_json=as_json)


@rule.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the rules with their last op and job.

    \b
    Example:
      vox-mesh rule list
    """
    found = run_command("rule list", lambda mesh: mesh.rules.listed())
    show_several([vars(RuleView.of(each)) if as_json else _line(each) for each in found], as_json=as_json)


@rule.command()
@click.argument("name")
@json_option
def remove(name: str, as_json: bool) -> None:
    """Remove a rule; jobs that it has scheduled stay.

    \b
    Example:
      vox-mesh rule remove locks-broken
    """
    run_command("rule remove", lambda mesh: mesh.rules.remove(name))
    show_one(vars(RemovedRuleView(name)), as_json=as_json)


def _line(rule: Rule) -> Record:
    """Return a rule's row of the table."""
    return {
        "name": rule.name,
        "op kind": rule.op_kind,
        "fields": None if rule.fields == "{}" else rule.fields,
        "job": template_text(rule.manifest),
        "last op": rule.last_op,
        "last job": None if rule.last_job is None else short_id(rule.last_job),
    }
