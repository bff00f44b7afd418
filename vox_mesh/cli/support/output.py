"""The output of commands: text, or one JSON document. One record is an object, several are an array."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
import orjson

from vox_mesh.cli.support.style import cut, fitting_widths, heading, state

Record = Mapping[str, Any]
"""A record: values by name; names are the columns of the tables."""

json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")

details_option: Final = click.option("-v", "--verbose", is_flag=True, help="Show all fields.")


def show_one(record: Record, *, as_json: bool) -> None:
    """Print one record."""
    if as_json:
        _print_json(record)
    else:
        _print(fields(record))


def show_done(record: Record, line: str, *, as_json: bool, verbose: bool) -> None:
    """Print what a command did: one line, with `verbose` all fields."""
    if as_json or verbose:
        show_one(record, as_json=as_json)
    else:
        show_lines([printable(line)])


def show_several(records: Sequence[Record], *, as_json: bool) -> None:
    """Print several records, which all have the same names."""
    if as_json:
        _print_json(records)
    else:
        _print(table(records, fits=True))


def show_next(record: Record) -> None:
    """Print one record of a stream as a JSON document on its own line."""
    sys.stdout.buffer.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
    sys.stdout.buffer.flush()


def show_lines(lines: Sequence[str]) -> None:
    """Print lines of text."""
    _print(lines)


def fields(record: Record, indent: str = "") -> list[str]:
    """Format a record as aligned lines of name and value; nested values follow, indented.

    The records of a sequence must all have the same names.
    """
    width = max((len(name) for name in record), default=0)
    lines: list[str] = []
    for name, value in record.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{name}", *fields(value, indent + "  ")]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            lines += [f"{indent}{name}", *(f"{indent}  {line}" for line in table(value))]
        else:
            lines.append(f"{indent}{name:<{width}}  {_text(value)}")
    return lines


def table(records: Sequence[Record], *, fits: bool = False) -> list[str]:
    """Format records as aligned columns below a heading; with `fits`, they are cut to a terminal's width."""
    if not records:
        return ["none"]
    names = list(records[0])
    grid = [names]
    grid += [[_text(record[name]) for name in names] for record in records]
    widths = [max(len(line[column]) for line in grid) for column in range(len(names))]
    widths = fitting_widths(names, widths) if fits else widths
    first, *rows = (
        [cut(cell, width).ljust(width) for cell, width in zip(line, widths, strict=True)] for line in grid
    )
    return [heading("  ".join(first).rstrip()), *("  ".join(map(state, row)).rstrip() for row in rows)]


def _text(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(" ".join(str(value).split()))


def printable(text: str) -> str:
    """Replace control characters: text of other machines must not control this terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(line)


def _print_json(document: Record | Sequence[Record]) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    sys.stdout.buffer.flush()


# --- help ----------------------------------------------------------------------------------------


class CommandGroup(click.Group):
    """A group that lists its commands with their whole summaries, however narrow the terminal is."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names and summaries of all commands."""
        with formatter.section("Commands"):
            formatter.write_dl(self.summaries(ctx))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error of its parser is given the command, whose help it should name."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            name = ctx.invoked_subcommand
            if (
                error.ctx is None
                and name is not None
                and (command := self.get_command(ctx, name)) is not None
            ):
                error.ctx = click.Context(command, parent=ctx, info_name=name)
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; a name that there is not is answered with the one that was probably meant."""
        name = args[0]
        if not (name.startswith("-") or ctx.resilient_parsing) and self.get_command(ctx, name) is None:
            from vox_mesh.cli.support.suggestions import suggestion  # imported late: only a mistake needs it

            near = suggestion(ctx.command_path, name, self.list_commands(ctx))
            raise click.UsageError(f"no such command '{name}'{near}", ctx)
        return super().resolve_command(ctx, args)

    def summaries(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Return the names and summaries of all commands."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        return [(name, summary_of(each)) for name, each in commands if each is not None]


def summary_of(command: click.Command) -> str:
    """Return the first sentence of a command's help."""
    return command.get_short_help_str(limit=sys.maxsize).removesuffix(".")
