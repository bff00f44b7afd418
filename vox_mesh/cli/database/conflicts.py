"""`vox-mesh conflicts`: writes that lost a race and wait for somebody to decide."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import aclosing
from typing import Final

import click

from vox_mesh.cli.support.output import (
    Record,
    fields,
    json_option,
    show_lines,
    show_next,
    show_one,
    show_several,
    table,
)
from vox_mesh.cli.support.start import start_shared
from vox_mesh.errors import BadValue
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.row_json import decode_row, show_row
from vox_mesh.model.occ.merge import Columns, FieldChange, change_of
from vox_mesh.occ.conflicts import Conflict, Resolution, Take
from vox_mesh.settings import Settings
from vox_mesh.views.conflicts import SIDES, ConflictView

_COLOURS: Final = {FieldChange.CLASH: "red", FieldChange.LEFT: "green", FieldChange.RIGHT: "cyan"}


@click.group(no_args_is_help=False)
def conflicts() -> None:
    """List, show, resolve and watch writes that lost a race."""


# --- looking -------------------------------------------------------------------------------------


@conflicts.command(name="list")
@click.option("--open", "open_only", is_flag=True, help="Only those that nobody has resolved yet.")
@click.option("--table", "table_name", help="Only those of this table.")
@json_option
def list_(open_only: bool, table_name: str | None, as_json: bool) -> None:
    """List the conflicts, oldest first.

    \b
    Example:
      vox-mesh conflicts list --open --table memories
    """
    found = asyncio.run(_listed(start_shared("conflicts list"), open_only, table_name))
    show_several([vars(ConflictView.of(each)) if as_json else _line(each) for each in found], as_json=as_json)


async def _listed(settings: Settings, open_only: bool, table_name: str | None) -> list[Conflict]:
    async with Mesh.open_command(settings) as mesh:
        return await mesh.conflicts.list(open_only=open_only, table=table_name)


@conflicts.command()
@click.argument("conflict_id", metavar="ID")
@json_option
def show(conflict_id: str, as_json: bool) -> None:
    """Show a conflict field by field. ID is its id, or enough of its beginning.

    Left is what the writer wanted, right what was there instead, base what the writer had read before. In a
    terminal, fields that only one side has changed are green (left) or cyan (right), and clashes are red.

    \b
    Example:
      vox-mesh conflicts show 01K9
    """
    conflict = asyncio.run(_found(start_shared("conflicts show"), conflict_id))
    if as_json:
        show_one(vars(ConflictView.of(conflict)), as_json=True)
    else:
        about = {name: value for name, value in vars(ConflictView.of(conflict)).items() if name not in SIDES}
        show_lines([*fields(about | {"row_key": _json(conflict.row_key)}), "", *_compared(conflict)])


async def _found(settings: Settings, conflict_id: str) -> Conflict:
    async with Mesh.open_command(settings) as mesh:
        return await mesh.conflicts.find(conflict_id)


def _line(conflict: Conflict) -> Record:
    """A conflict as people want to see it."""
    return {
        "conflict_id": conflict.conflict_id,
        "table_name": conflict.table_name,
        "row_key": _json(conflict.row_key),
        "state": conflict.state if conflict.is_open else f"{conflict.state} ({conflict.resolution})",
        "left by": conflict.left_agent or conflict.left_node,
        "right by": conflict.right_node,
        "deferred to": conflict.deferred_to,
        "created_at": conflict.created_at,
    }


def _json(row: Columns) -> str:
    return json.dumps(show_row(row), ensure_ascii=False)


def _compared(conflict: Conflict) -> list[str]:
    """A line for each field, with what it is on all sides and which of them changed it."""
    sides = [getattr(conflict, side) for side in SIDES]
    names = dict.fromkeys(name for side in reversed(sides) if side is not None for name in side)
    changes = {name: _changed_by(conflict, name) for name in names}
    rows = [
        {"field": name, "changed by": change.value}
        | {side: _cell(row, name) for side, row in zip(SIDES, sides, strict=True)}
        for name, change in changes.items()
    ]
    heading, *lines = table(rows)
    if not _is_coloured():
        return [heading, *lines]
    colours = map(_COLOURS.get, changes.values())
    return [heading, *map(_coloured, lines, colours)]


def _coloured(line: str, colour: str | None) -> str:
    return line if colour is None else click.style(line, fg=colour)


def _is_coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _changed_by(conflict: Conflict, name: str) -> FieldChange:
    right = conflict.base if conflict.right is None else conflict.right  # gone, it has changed no field
    return change_of(name, conflict.base, conflict.left, right or {})


def _cell(row: Columns | None, name: str) -> str:
    """A value as JSON, so that text and numbers, and nothing and absent, can be told apart."""
    return "" if row is None or name not in row else json.dumps(show_row(row)[name], ensure_ascii=False)


# --- deciding ------------------------------------------------------------------------------------


@conflicts.command()
@click.argument("conflict_id", metavar="ID")
@click.option(
    "--take",
    type=click.Choice([take.value for take in Take]),
    help="The side that the row becomes, or both merged.",
)
@click.option("--value", metavar="JSON", help="The values that the row gets, as a JSON object.")
@click.option("--reason", help="Why, for the log.")
@click.option("--onto", metavar="VERSION", help="Decide on this newer version (written_at) of the row.")
@json_option
def resolve(
    conflict_id: str, take: str | None, value: str | None, reason: str | None, onto: str | None, as_json: bool
) -> None:
    """Resolve a conflict: make the row one side, the merge of both, or what VALUE says.

    Only if the row is still the right side. Otherwise nothing changes and the row's new state is shown: add
    --onto with its written_at (or `gone`) to decide on that.

    \b
    Example:
      vox-mesh conflicts resolve 01K9 --take merge --reason "both are right"
    """
    if (take is None) == (value is None):
        raise click.UsageError("give one of --take and --value", click.get_current_context())
    values = None if value is None else _parsed(value)
    settings = start_shared("conflicts resolve")
    done = asyncio.run(_resolve(settings, conflict_id, take, values, reason, onto))
    show_one(done._asdict(), as_json=as_json)


def _parsed(value: str) -> Columns:
    try:
        return decode_row(json.loads(value))
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadValue(f"--value is not JSON: {error}", hint="""for example --value '{"a": 1}'""") from None


async def _resolve(
    settings: Settings,
    conflict_id: str,
    take: str | None,
    value: Columns | None,
    reason: str | None,
    onto: str | None,
) -> Resolution:
    async with Mesh.open_command(settings) as mesh:
        return await mesh.conflicts.resolve(conflict_id, take=take, value=value, reason=reason, onto=onto)


@conflicts.command()
@json_option
def watch(as_json: bool) -> None:
    """Show the open conflicts, then each that is recorded or resolved, as it happens, until Ctrl-C.

    With --json each is a document on a line of its own.

    \b
    Example:
      vox-mesh conflicts watch
    """
    asyncio.run(_watch(start_shared("conflicts watch"), as_json))


async def _watch(settings: Settings, as_json: bool) -> None:
    async with Mesh.open_command(settings) as mesh, aclosing(mesh.conflicts.watch()) as changes:
        async for conflict in changes:
            if as_json:
                show_next(vars(ConflictView.of(conflict)))
            else:
                show_lines(table([_line(conflict)])[1:])
