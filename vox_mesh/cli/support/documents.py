"""Documents that a command reads from a file or stdin, and the report of their faults."""

from __future__ import annotations

from typing import Final, NamedTuple

import click

from vox_mesh.errors import BadDocument, BadValue
from vox_mesh.model.documents.documents import MAX_BYTES

_STDIN: Final = "-"


class NamedText(NamedTuple):
    """A text, and its name in error messages."""

    text: bytes
    name: str


def read_file(file: str) -> NamedText:
    """Read a file; `-` is stdin."""
    name = "stdin" if file == _STDIN else file
    try:
        with click.open_file(file, "rb") as opened:
            # One byte more than allowed is enough for the size check to fail.
            return NamedText(opened.read(MAX_BYTES + 1), name)
    except OSError as error:
        raise BadValue(f"{name} can't be read: {error.strerror}", hint="pass a readable file") from None


def print_faults(bad: BadDocument, file: str) -> None:
    """Print the faults of a file to stderr, one per line."""
    name = "stdin" if file == _STDIN else file
    for fault in bad.faults:
        click.echo(fault if fault.startswith(f"{name}:") else f"{name}: {fault}", err=True)
