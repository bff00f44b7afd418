"""`vox-mesh budget`: budgets of agents and accounts, and their spending."""

from __future__ import annotations

from dataclasses import asdict
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
from vox_mesh.model.rhythm.tokens import MAX_TOKENS
from vox_mesh.rhythm.budgets import SetBudget, Spending
from vox_mesh.rhythm.token_ledger import SpendRow
from vox_mesh.views.rhythm import BudgetView, SpendingView
from vox_mesh.views.tokens import SpendRowView, spend_text, tokens_text

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
@click.option("--max-tokens", type=click.IntRange(0, MAX_TOKENS), metavar="N", help="Budget in tokens.")
@click.option("--max-money", metavar="MONEY", help="Budget in money, such as '20.00 USD'.")
@click.option("--anew", is_flag=True, help="Start counting from now: ignore past spending.")
@click.option("--none", "is_removed", is_flag=True, help="Remove the budget.")
@json_option
def set_(
    subject: str,
    file: str | None,
    max_bu: float | None,
    max_tokens: int | None,
    max_money: str | None,
    anew: bool,
    is_removed: bool,
    as_json: bool,
) -> int:
    """Set or remove the budget of an agent or account.

    FILE may be - for stdin. A worker warns at 0.8 of the budget, claims no new jobs at 1.0, and stops running
    ones at 1.25. Tokens and money are reserved before a job begins. The faults of a file are listed line by
    line, and end with 2.

    \b
    Example:
      vox-mesh budget set account:research --max-bu 500
      vox-mesh budget set agent:planner budget.yaml --anew
      vox-mesh budget set agent:coder --max-tokens 2000000 --max-money '20.00 USD'
    """
    checked_subject(subject)
    limits = {"max_bu": max_bu, "max_tokens": max_tokens, "max_money": max_money}
    given_limits = {name: value for name, value in limits.items() if value is not None}
    if sum((file is not None, bool(given_limits), is_removed)) != 1:
        raise click.UsageError("pass exactly one of FILE, limits such as --max-bu N, and --none")
    if is_removed:
        run_command("budget set", lambda mesh: mesh.rhythm.budgets.remove(subject))
        show_one({"subject": subject, "budget": None}, as_json=as_json)
        return ExitCode.DONE
    try:
        given = Budget.of_document(given_limits) if file is None else parse_budget(*read_file(file))
    except BadBudget as bad:
        if file is None:
            raise
        print_faults(bad, file)
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
    if as_json:
        show_several([asdict(SpendingView.of(each)) for each in found], as_json=True)
        return
    has_tokens = any(each.tokens or each.limits for each in found)
    show_several([_spent_record(each, has_tokens=has_tokens) for each in found], as_json=False)


@budget.command()
@click.option("--agent", help="Agent that used them.", show_default="all")
@click.option("--account", help="Account that paid for them.", show_default="all")
@click.option(
    "--since", type=seconds, metavar="DURATION", default="30d", show_default=True, help="Period, up to now."
)
@json_option
def tokens(agent: str | None, account: str | None, since: float, as_json: bool) -> None:
    """Show used tokens of models, and their price.

    By agent, account, kind, model and day, the newest first; at most 1,000 rows.

    \b
    Example:
      vox-mesh budget tokens --agent coder --since 7d
    """

    async def read(mesh: Mesh) -> list[SpendRow]:
        since_ms = mesh.clock.now_ms - round(since * 1_000)
        return await mesh.rhythm.tokens.totals(since_ms=since_ms, agent=agent, account=account)

    views = [SpendRowView.of(each) for each in run_command("budget tokens", read)]
    if as_json:
        show_several([asdict(view) for view in views], as_json=True)
    else:
        show_several([{**vars(view), "tokens": tokens_text(view.tokens)} for view in views], as_json=False)


def _set_record(found: SetBudget, *, as_json: bool) -> Record:
    view = BudgetView.of(found)
    if as_json:
        return vars(view)
    rest = {name: value for name, value in view.budget.items() if name != "max_bu"}
    more = ", ".join(f"{name} {_words(value)}" for name, value in rest.items())
    return {"subject": view.subject, "max_bu": _number(found.budget.max_bu), "more": more}


def _spent_record(found: Spending, *, has_tokens: bool) -> Record:
    view = SpendingView.of(found)
    return {
        "subject": view.subject,
        "phrases": view.phrases,
        "beats": _number(view.bu),
        "of": _number(view.max_bu),
        "cost": _number(view.cost),
        "verdict": view.verdict,
        **({} if view.ecu is None else {"ecu": _number(view.ecu)}),
        **({"tokens": spend_text(found.tokens), "limits": _limits(view)} if has_tokens else {}),
        "used": ", ".join(f"{name} {_words(value)}" for name, value in view.resources.items()),
    }


def _limits(view: SpendingView) -> str:
    """Return how the limits on tokens and money stand: spent, plus reserved, of the most."""
    return ", ".join(
        f"{each.resource} {each.spent}+{each.reserved} of {each.most} {each.currency or ''}".rstrip()
        for each in view.limits
    )


def _words(value: object) -> str:
    """Return a value as text; a map becomes its names and numbers."""
    if isinstance(value, dict):
        return "/".join(f"{name} {_words(each)}" for name, each in value.items())
    return str(_number(value)) if isinstance(value, int | float) else str(value)


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}".rstrip("0").rstrip(".")
