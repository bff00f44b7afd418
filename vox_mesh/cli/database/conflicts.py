"""`vox-mesh conflicts`: conflicting optimistic writes that wait for a resolution."""

from __future__ import annotations

import json
import os
import sys
from contextlib import aclosing
from typing import Final

import click

from vox_mesh.cli.support.output import (
    CommandGroup,
    Record,
    fields,
    json_option,
    show_lines,
    show_next,
    show_one,
    show_several,
    table,
)
from vox_mesh.cli.support.session import run_command
from vox_mesh.errors import BadValue, NotJson
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.canonical import decode_row, show_row
from vox_mesh.model.base.json_text import read_json
from vox_mesh.model.occ.merge import Columns, FieldChange, change_of
from vox_mesh.occ.conflicts import Conflict, Resolution, Take
from vox_mesh.views.conflicts import SIDES, ConflictView

_COLOURS: Final = {FieldChange.CLASH: "red", FieldChange.LEFT: "green", FieldChange.RIGHT: "cyan"}


@click.group(cls=CommandGroup, no_args_is_help=False)
def conflicts() -> None:
    """List, show, resolve and watch conflicting writes."""


# --- reading -------------------------------------------------------------------------------------


@conflicts.command(name="list")
@click.option("--open", "open_only", is_flag=True, help="List only unresolved conflicts.")
@click.option("--table", "table_name", help="Table of the conflicts to list.")
@json_option
def list_(open_only: bool, table_name: str | None, as_json: bool) -> None:
    """List the conflicts, oldest first.

    \b
    Example:
      vox-mesh conflicts list --open --table memories
    """
    found = run_command(
        "conflicts list", lambda mesh: mesh.conflicts.list(open_only=open_only, table=table_name)
    )
    show_several([vars(ConflictView.of(each)) if as_json else _line(each) for each in found], as_json=as_json)


@conflicts.command()
@click.argument("conflict_id", metavar="ID")
@json_option
def show(conflict_id: str, as_json: bool) -> None:
    """Show a conflict field by field.

    ID is the conflict's id or a unique prefix. Left is the rejected write, right is the row in the database,
    base is the row that the writer had read. In a terminal, fields that only one side has changed are green
    (left) or cyan (right), and clashes are red.

    \b
    Example:
      vox-mesh conflicts show 01K9
    """
    conflict = run_command("conflicts show", lambda mesh: mesh.conflicts.find(conflict_id))
    if as_json:
        show_one(vars(ConflictView.of(conflict)), as_json=True)
    else:
        about = {name: value for name, value in vars(ConflictView.of(conflict)).items() if name not in SIDES}
        show_lines([*fields(about | {"row_key": _json(conflict.row_key)}), "", *_compared(conflict)])


def _line(conflict: Conflict) -> Record:
    """Return a conflict's row of the table."""
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
    """Return a line for each field: its value on each side, and the side that changed it."""
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
    right = conflict.base if conflict.right is None else conflict.right  # a deleted row has changed no field
    return change_of(name, conflict.base, conflict.left, right or {})


def _cell(row: Columns | None, name: str) -> str:
    """Return a value as JSON, which distinguishes text from numbers and null from absent."""
    return "" if row is None or name not in row else json.dumps(show_row(row)[name], ensure_ascii=False)


# --- resolving -----------------------------------------------------------------------------------


@conflicts.command()
@click.argument("conflict_id", metavar="ID")
@click.option(
    "--take",
    type=click.Choice([take.value for take in Take]),
    help="Side to write to the row, or the merge of both.",
)
@click.option("--value", metavar="JSON", help="Values to write to the row, as a JSON object.")
@click.option("--reason", help="Reason for the op log.")
@click.option("--onto", metavar="VERSION", help="Newer version (written_at) of the row to overwrite.")
@json_option
def resolve(
    conflict_id: str, take: str | None, value: str | None, reason: str | None, onto: str | None, as_json: bool
) -> None:
    """Resolve a conflict: write one side, the merge or values.

    The row must still be the right side. Otherwise nothing changes and the error shows the row's new state:
    pass its written_at (or `gone`) with --onto to resolve against that.

    \b
    Example:
      vox-mesh conflicts resolve 01K9 --take merge --reason "both are right"
    """
    if (take is None) == (value is None):
        raise click.UsageError("pass either --take or --value", click.get_current_context())
    values = None if value is None else _parse(value)

    async def decide(mesh: Mesh) -> Resolution:
        return await mesh.conflicts.resolve(conflict_id, take=take, value=values, reason=reason, onto=onto)

    done = run_command("conflicts resolve", decide)
    show_one(done._asdict(), as_json=as_json)


def _parse(value: str) -> Columns:
    try:
        return decode_row(read_json(value))
    except NotJson as error:
        raise BadValue(
            f"--value is not JSON: {error}", hint="""pass a JSON object such as '{"a": 1}'"""
        ) from None


@conflicts.command()
@json_option
def watch(as_json: bool) -> None:
    """Show open conflicts, then each change, until Ctrl-C.

    A change is a conflict that is recorded or resolved. With --json each is a document on its own line.

    \b
    Example:
      vox-mesh conflicts watch
    """
    run_command("conflicts watch", lambda mesh: _watch(mesh, as_json))


async def _watch(mesh: Mesh, as_json: bool) -> None:
    async with aclosing(mesh.conflicts.watch()) as changes:
        async for conflict in changes:
            if as_json:
                show_next(vars(ConflictView.of(conflict)))
            else:
                show_lines(table([_line(conflict)])[1:])
