"""`vox-mesh budget`: budgets of agents and accounts, and their spending."""

from __future__ import annotations

from typing import Final

import click

from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.options import print_faults, read_file, seconds
from vox_mesh.cli.support.output import CommandGroup, Record, json_option, show_one, show_several
from vox_mesh.cli.support.session import run_command
from vox_mesh.errors import BadBudget
from vox_mesh.mesh import Mesh
from vox_mesh.model.rhythm.budgets import Budget, checked_subject, parse_budget
from vox_mesh.model.rhythm.costs import MOST
from vox_mesh.rhythm.budgets import SetBudget, Spending
from vox_mesh.views.rhythm import BudgetView, SpendingView

_SUBJECT: Final = click.argument("subject", metavar="SUBJECT")
_ANY: Final = click.argument("subject", metavar="[SUBJECT]", required=False)


def _beats(text: str) -> float:
    try:
        beats = float(text)
    except ValueError:
        beats = -1.0
    if not 0 <= beats <= MOST:
        raise click.BadParameter(f"must be a number from 0 to {MOST:g}, got {text!r}")
    return beats


@click.group(cls=CommandGroup, no_args_is_help=False)
def budget() -> None:
    """Set budgets in beats, and show spending.

    SUBJECT is agent:NAME or account:NAME.
    """


@budget.command(name="set")
@_SUBJECT
@click.argument("file", required=False)
@click.option("--max-bu", type=_beats, metavar="N", help="Budget in beats, instead of a file.")
@click.option("--anew", is_flag=True, help="Start counting from now: ignore past spending.")
@click.option("--none", "is_removed", is_flag=True, help="Remove the budget.")
@json_option
def set_(
    subject: str, file: str | None, max_bu: float | None, anew: bool, is_removed: bool, as_json: bool
) -> int:
    """Set or remove the budget of an agent or account.

    FILE may be - for stdin. A worker warns at 0.8 of the budget, claims no new jobs at 1.0, and stops running
    ones at 1.25. The faults of a file are listed line by line, and end with 2.

    \b
    Example:
      vox-mesh budget set account:research --max-bu 500
      vox-mesh budget set agent:planner budget.yaml --anew
    """
    checked_subject(subject)
    if sum((file is not None, max_bu is not None, is_removed)) != 1:
        raise click.UsageError("pass exactly one of FILE, --max-bu N and --none")
    if is_removed:
        run_command("budget set", lambda mesh: mesh.rhythm.budgets.remove(subject))
        show_one({"subject": subject, "budget": None}, as_json=as_json)
        return ExitCode.DONE
    try:
        given = Budget(max_bu=max_bu) if file is None else parse_budget(*read_file(file))
    except BadBudget as bad:
        print_faults(bad, file or "")
        return ExitCode.USAGE
    found = run_command("budget set", lambda mesh: mesh.rhythm.budgets.set(subject, given, anew=anew))
    show_one(_set_record(found, as_json=as_json), as_json=as_json)
    return ExitCode.DONE


@budget.command()
@_ANY
@json_option
def show(subject: str | None, as_json: bool) -> None:
    """Show all budgets, or the budget of SUBJECT.

    \b
    Example:
      vox-mesh budget show account:research
    """
    found = run_command("budget show", lambda mesh: mesh.rhythm.budgets.show(subject))
    records = [_set_record(each, as_json=as_json) for each in found]
    if subject is None:
        show_several(records, as_json=as_json)
    else:
        show_one(records[0], as_json=as_json)


@budget.command()
@_ANY
@click.option(
    "--since",
    type=seconds,
    metavar="DURATION",
    help="Period to report, up to now.",
    show_default="since each budget counts",
)
@json_option
def report(subject: str | None, since: float | None, as_json: bool) -> None:
    """Show the spending of agents and accounts.

    \b
    Example:
      vox-mesh budget report --since 1d
    """

    async def read(mesh: Mesh) -> list[Spending]:
        await mesh.rhythm.refresh()
        since_ms = None if since is None else mesh.clock.now_ms - round(since * 1_000)
        return await mesh.rhythm.budgets.report(subject, since_ms=since_ms)

    found = run_command("budget report", read)
    show_several([_spent_record(each, as_json=as_json) for each in found], as_json=as_json)


def _set_record(found: SetBudget, *, as_json: bool) -> Record:
    view = BudgetView.of(found)
    if as_json:
        return vars(view)
    rest = {name: value for name, value in view.budget.items() if name != "max_bu"}
    more = ", ".join(f"{name} {_words(value)}" for name, value in rest.items())
    return {"subject": view.subject, "max_bu": _number(found.budget.max_bu), "more": more}


def _spent_record(found: Spending, *, as_json: bool) -> Record:
    view = SpendingView.of(found)
    if as_json:
        return vars(view)
    return {
        "subject": view.subject,
        "phrases": view.phrases,
        "beats": _number(view.bu),
        "of": _number(view.max_bu),
        "cost": _number(view.cost),
        "verdict": view.verdict,
        **({} if view.ecu is None else {"ecu": _number(view.ecu)}),
        "used": ", ".join(f"{name} {_words(value)}" for name, value in view.resources.items()),
    }


def _words(value: object) -> str:
    """Return a value as text; a map becomes its names and numbers."""
    if isinstance(value, dict):
        return "/".join(f"{name} {_words(each)}" for name, each in value.items())
    return str(_number(value)) if isinstance(value, int | float) else str(value)


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}".rstrip("0").rstrip(".")
