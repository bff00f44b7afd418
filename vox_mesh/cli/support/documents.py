"""What people wrote, as a command is given it: read from a file or stdin, and what is wrong with it told."""

from __future__ import annotations

from typing import Final, NamedTuple

import click

from vox_mesh.errors import BadDocument, BadValue
from vox_mesh.model.documents.documents import MAX_BYTES

_STDIN: Final = "-"


class NamedText(NamedTuple):
    """A text, and what it is called when something is wrong with it."""

    text: bytes
    name: str


def read_file(file: str) -> NamedText:
    """The text of a file; `-` is stdin."""
    name = "stdin" if file == _STDIN else file
    try:
        with click.open_file(file, "rb") as opened:
            return NamedText(
                opened.read(MAX_BYTES + 1), name
            )  # more than may be is told, and need not be read
    except OSError as error:
        raise BadValue(f"{name} can't be read: {error.strerror}", hint="name another file") from None


def tell_faults(bad: BadDocument, file: str) -> None:
    """What is wrong with a file, each on a line."""
    name = "stdin" if file == _STDIN else file
    for fault in bad.faults:
        click.echo(fault if fault.startswith(f"{name}:") else f"{name}: {fault}", err=True)
