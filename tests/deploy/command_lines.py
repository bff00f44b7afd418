"""`vox-mesh` command lines in texts, and whether there are such commands and options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from vox_mesh.cli.app import app

_SHELL_BLOCK: Final = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN: Final = re.compile(r"`(vox-mesh [^`]+)`")
_ARGUMENTS: Final = r"((?:'[^']*'|\"[^\"]*\"|[^|&;<>()`'\"\n])+)"
_COMMAND: Final = re.compile(rf"(?:^|[|&;(])\s*(?:[A-Z_]+=\S+\s+)*vox-mesh {_ARGUMENTS}", re.MULTILINE)
_MENTION: Final = re.compile(r"vox-mesh ((?:token|up)\b[a-z0-9 -]*)")


def in_shell(text: str) -> Iterator[list[str]]:
    """The arguments of each command in a piece of shell."""
    for found in _COMMAND.finditer(text.replace("\\\n", " ")):
        yield shlex.split(found[1], comments=True)


def mentioned(text: str) -> Iterator[list[str]]:
    """The arguments of each command that a comment, or a message, tells its reader to use."""
    for found in _MENTION.finditer(text):
        yield shlex.split(found[1])


def on_page(page: Path) -> list[list[str]]:
    """The arguments of each command that a page shows, in blocks of shell and within its sentences."""
    text = page.read_text()
    shown = [*_SHELL_BLOCK.findall(text), *(span.replace("\n", " ") for span in _SPAN.findall(text))]
    return [arguments for each in shown for arguments in in_shell(each)]


def check(arguments: list[str]) -> None:
    """Fail unless there is such a command, and all its options."""
    command: click.Command = app
    context = click.Context(command, info_name="vox-mesh")
    if "--" in arguments:
        arguments = arguments[: arguments.index("--")]
    while True:
        _, rest, _ = command.make_parser(context).parse_args(list(arguments))
        if not isinstance(command, click.Group) or (command.invoke_without_command and not rest):
            return
        assert rest, f"`{context.command_path}` needs a command"
        inner = command.get_command(context, rest[0])
        assert inner is not None, f"there is no `{context.command_path} {rest[0]}`"
        context = click.Context(inner, parent=context, info_name=rest[0])
        command, arguments = inner, rest[1:]
