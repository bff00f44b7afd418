"""`vox-mesh db retention` and `db prune`: how long rows are kept, and pruning by hand."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import click

from vox_mesh.cli.support.options import seconds
from vox_mesh.cli.support.output import CommandGroup, json_option, show_lines, show_one, show_several, table
from vox_mesh.cli.support.session import run_command
from vox_mesh.model.retention.subjects import MAX_BYTES, MAX_ROWS, Subject
from vox_mesh.views.retention import PrunedView, TableSizeView, policy_view
from vox_mesh.views.retention import retention as retention_view

_NEVER: Final = "never"
_COLUMNS: Final = ("subject", "kind", "age", "max_rows", "max_bytes", "pruned", "needed")
_SET_COLUMNS: Final = ("subject", "kind", "age", "max_rows", "max_bytes")
_SUBJECT: Final = click.argument("subject", type=click.Choice([each.value for each in Subject]))


def _age(text: str) -> float | None:
    return None if text == _NEVER else seconds(text)


@click.group(cls=CommandGroup, no_args_is_help=False)
def retention() -> None:
    """Show and set how long rows are kept."""


@retention.command()
@json_option
def show(as_json: bool) -> None:
    """Show all policies, and how far pruning is.

    \b
    Example:
      vox-mesh db retention show --json
    """
    view = asdict(run_command("db retention show", retention_view))
    if as_json:
        show_one(view, as_json=True)
        return
    show_lines(table([{name: each[name] for name in _COLUMNS} for each in view["policies"]]))


@retention.command(name="set")
@_SUBJECT
@click.option("--kind", default="", help="Kind of job, or type of message or artifact.", show_default="all")
@click.option("--age", type=_age, metavar="DURATION", help="Age at which rows are pruned; or never.")
@click.option("--max-rows", type=click.IntRange(0, MAX_ROWS), metavar="N", help="Rows to keep at most.")
@click.option("--max-bytes", type=click.IntRange(0, MAX_BYTES), metavar="N", help="Bytes to keep at most.")
@click.option("--default", "is_removed", is_flag=True, help="Remove the policy: the default applies.")
@json_option
@click.pass_context
def set_(
    context: click.Context,
    subject: str,
    kind: str,
    age: float | None,
    max_rows: int | None,
    max_bytes: int | None,
    is_removed: bool,
    as_json: bool,
) -> None:
    """Set how long rows of SUBJECT are kept.

    A row goes when it is older than the age, or one of too many; without --age, --max-rows or --max-bytes,
    that does not matter. Only artifacts are pruned by their bytes. What something still refers to is kept.
    The op log records the policy.

    \b
    Example:
      vox-mesh db retention set jobs --age 90d
      vox-mesh db retention set jobs --kind build --age 7d --max-rows 10000
      vox-mesh db retention set artifacts --age 30d --max-bytes 10000000000
      vox-mesh db retention set messages --default
    """
    has_age = context.get_parameter_source("age") is not click.core.ParameterSource.DEFAULT
    has_limit = has_age or max_rows is not None or max_bytes is not None
    if has_limit == is_removed:
        raise click.UsageError("pass --age, --max-rows or --max-bytes, or --default")
    if is_removed:
        run_command("db retention set", lambda mesh: mesh.retention.unset(subject, kind=kind))
        show_one({"subject": subject, "kind": kind or None, "is_default": True}, as_json=as_json)
        return
    age_ms = None if age is None else round(age * 1_000)
    limits = {"age_ms": age_ms, "max_rows": max_rows, "max_bytes": max_bytes}
    policy = run_command("db retention set", lambda mesh: mesh.retention.set(subject, kind=kind, **limits))
    view = asdict(policy_view(policy))
    show_one({name: view[name] for name in _SET_COLUMNS}, as_json=as_json)


@click.command()
@json_option
def stats(as_json: bool) -> None:
    """Show size, growth and forecast by table.

    Growth is the mean of up to seven days; the forecast is for 30 days. Nodes keep a sample a day. A server
    can't say how many bytes a table takes, unless this node has a replica of it.

    \b
    Example:
      vox-mesh db stats
    """
    found = run_command("db stats", lambda mesh: mesh.retention.sizes.tables())
    show_several([asdict(TableSizeView.of(each)) for each in found if each.rows or as_json], as_json=as_json)


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be pruned.")
@json_option
def prune(dry_run: bool, as_json: bool) -> None:
    """Prune all rows past their policy now.

    Nodes do this all the time: use it after you have set a shorter policy. It writes in small batches, and
    others can write meanwhile. `needed`: rows past their policy that something still refers to.

    \b
    Example:
      vox-mesh db prune --dry-run
    """
    done = run_command(
        "db prune", lambda mesh: mesh.retention.preview() if dry_run else mesh.retention.prune_all()
    )
    show_several([asdict(PrunedView.of(each)) for each in done], as_json=as_json)
