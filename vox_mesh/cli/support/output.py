"""What a command prints: tidy text, or one JSON document. One thing is an object, several are an array."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
import orjson

Record = Mapping[str, Any]
"""One thing: names, in the words of the tables, and values."""

json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


def show_one(record: Record, *, as_json: bool) -> None:
    """Print one thing."""
    if as_json:
        _print_json(record)
    else:
        _print(fields(record))


def show_several(records: Sequence[Record], *, as_json: bool) -> None:
    """Print several things, which all have the same names."""
    if as_json:
        _print_json(records)
    else:
        _print(table(records))


def show_next(record: Record) -> None:
    """Print one of many things that come one by one, as a JSON document on a line of its own."""
    sys.stdout.buffer.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
    sys.stdout.buffer.flush()


def show_lines(lines: Sequence[str]) -> None:
    """Print text that is laid out already."""
    _print(lines)


def fields(record: Record, indent: str = "") -> list[str]:
    """A line for each name and value, aligned; what a value contains follows it, indented.

    A sequence is one of things that all have the same names.
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


def table(records: Sequence[Record]) -> list[str]:
    """A heading and a line for each thing, in aligned columns."""
    if not records:
        return ["none"]
    names = list(records[0])
    grid = [names]
    grid += [[_text(record[name]) for name in names] for record in records]
    widths = [max(len(line[column]) for line in grid) for column in range(len(names))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in grid
    ]


def _text(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(" ".join(str(value).split()))


def printable(text: str) -> str:
    """Text as it may be shown: what other machines wrote must not be able to steer this terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(line)


def _print_json(document: Record | Sequence[Record]) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    sys.stdout.buffer.flush()
